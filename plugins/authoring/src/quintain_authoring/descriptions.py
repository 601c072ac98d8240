"""Whether the descriptions of a component in its code, its manifest and its distribution agree."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from quintain import Algorithm, Piece
from quintain.registry import Component, current

from .new import EPISODES, KINDS, distribution_files

TEMPLATES = frozenset(
    {*EPISODES.values(), *(kind.summary for kind in KINDS.values() if kind.summary)}
)
"""The descriptions that `quintain new` writes."""
COMMON_WORDS = frozenset(
    "from have into less more must only same that their them then they this when where with".split()
)


def stale_description(component: Component) -> str:
    """Return what is wrong with the descriptions of an installed *component*, and what to change;
    empty if nothing is.

    A description is stale if it is a template's while another one, or the code, is not; if that of
    an algorithm is not the manifest's; or if the docstring of an environment or reward shares no
    word with the manifest.
    """
    registry, package = current(), component.module.partition(".")[0]
    manifest = registry.manifest(component)
    entry = manifest.entry(component) if manifest else None
    if entry is None:
        return ""  # the check of the manifest says so
    description = own_description(registry.resolve(component))
    toml = f"summary of {component.name!r} in {package}/quintain.toml"
    place = f"the code of {component.name!r}"
    project_description = str(metadata(component.distribution).json.get("summary", ""))
    first = " ".join(description.partition("\n\n")[0].split())
    texts = {
        place: first,
        toml: entry.summary,
        f"description in pyproject.toml of {component.distribution}": project_description,
    }
    template = [name for name, text in texts.items() if text in TEMPLATES]
    if template and (set(texts.values()) - TEMPLATES - {""} or not is_template(component, package)):
        written = "\n".join(f"{name}: {texts[name]}" for name in template)
        again = "; then pip install -e . again" if template[-1].startswith("description") else ""
        return (
            f"the description is still that of `quintain new`; write what the component "
            f"does{again}\n{written}"
        )
    differs = component.kind == "algorithm" and first != entry.summary
    unrelated = (
        component.kind in ("environment", "reward")
        and description
        and not words(description) & words(entry.summary)
    )
    if differs or unrelated:
        return (
            f"two descriptions do not agree; change the one that is stale\n{place}: "
            f"{first}\n{toml}: {entry.summary}"
        )
    return ""


def own_description(loaded: Any) -> str:
    """Return the summary of an algorithm, the help of a command, the docstring of anything else."""
    if isinstance(loaded, click.Command):
        return loaded.help or ""
    if isinstance(loaded, Algorithm):
        return loaded.summary
    return inspect.getdoc(loaded.function if isinstance(loaded, Piece) else loaded) or ""


def words(text: str) -> set[str]:
    """Return the words of *text* that say something, in lower case."""
    return set(re.findall(r"[^\W\d_]{4,}", text.lower())) - COMMON_WORDS


def is_template(component: Component, package: str) -> bool:
    """Return whether the code of *component* is what `quintain new` wrote."""
    kinds = [name for name, row in KINDS.items() if row.component == component.kind]
    spec, file = find_spec(package), f"{component.name.replace('-', '_')}.py"
    path = Path(spec.origin if spec and spec.origin else "").parent / file
    if not path.is_file():
        return False
    written = (
        distribution_files(kind, component.name, episode) for kind in kinds for episode in EPISODES
    )
    ours = (files.get(f"src/{package}/{file}") for files in written)
    return path.read_text(encoding="utf-8") in ours
