"""Completion of names in a shell: runs, recipes, and components by kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ..registry.discovery import KINDS
from ..registry.lookup import current

EVERY = tuple(KINDS.values())
NAMES: dict[str, tuple[str, ...]] = {
    "env": ("environment",),
    "environment": ("environment",),
    "recipe": ("environment", "recipe"),
    "recipes": ("recipe",),
    "model": ("model", "run"),
    "engine": ("engine",),
    "algorithms": ("algorithm",),
    "resume": ("run",),
    "run": ("run",),
    "runs": ("run",),
    "source": ("environment", "run"),
    "name": EVERY,
    "reward": ("reward",),
}
"""What a parameter of a command takes, by its name: kinds of components, ``run`` or ``recipe``."""
TEXTS = {"train": {"name"}, "new": {"name"}}
"""Parameters of commands that have such a name and take any text."""


def complete_names(command: click.Command) -> None:
    """Let the parameters of *command* complete names."""
    for parameter in command.params:
        if parameter.name in NAMES and parameter.name not in TEXTS.get(command.name or "", ()):
            parameter._custom_shell_complete = partial(complete, NAMES[parameter.name])


def complete(
    kinds: Sequence[str], ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete names of *kinds* that begin with *incomplete*; files if there is none."""
    from ..recipe.tables import Recipe

    names = {c.name for c in current().components() if c.kind in kinds}
    if "run" in kinds:
        names |= {
            p.parent.name for p in Path(ctx.params.get("folder") or "runs").glob("*/recipe.toml")
        }
    if "recipe" in kinds:
        names |= set(Recipe.BUNDLED)
    items = [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]
