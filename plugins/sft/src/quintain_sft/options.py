"""The options that commands share that train a model on stored examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from quintain.cli import Count

Command = TypeVar("Command", bound=Callable[..., Any])


def training_options(
    *, rows: str, out: str, epochs: int, lr: str, model: str | None = None
) -> Callable[[Command], Command]:
    """Give a command the options ``--model``, ``--out``, ``--epochs``, ``--lr``, ``--batch``,
    ``--set``, ``--folder``, ``--quiet`` and ``--json``.

    Args:
        rows: what the model trains on, as in "Rows per update."
        out: the folder that is written by default.
        epochs: passes over the rows by default.
        lr: the learning rates by default, in words.
        model: the model by default; ``None`` requires ``--model``.
    """
    default: dict[str, Any] = (
        {"required": True} if model is None else {"default": model, "show_default": True}
    )
    options = (
        click.option(
            "--model",
            "-m",
            **default,
            help=(
                'Folder, run, Hugging Face id, or "default": the small model that Quintain brings, '
                "untrained."
            ),
        ),
        click.option(
            "--out",
            "-o",
            type=click.Path(path_type=Path),
            help=f"Folder to write.  [default: {out}]",
        ),
        click.option(
            "--epochs",
            type=Count(1),
            default=epochs,
            show_default=True,
            help=f"Number of passes over the {rows}.",
        ),
        click.option("--lr", type=float, help=f"Highest learning rate.  [default: {lr}]"),
        click.option(
            "--batch",
            type=Count(1),
            default=32,
            show_default=True,
            help=f"{rows.capitalize()} per update.",
        ),
        click.option(
            "--set",
            "-s",
            "overrides",
            multiple=True,
            metavar="A.B=VALUE",
            help=(
                "Key of a recipe's [learner], model.lora, model.template or model.device "
                "(repeatable)."
            ),
        ),
        click.option(
            "--folder", default="runs", show_default=True, help="Folder of the run folders."
        ),
        click.option("--quiet", "-q", is_flag=True, help="Show warnings only."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the report as one JSON object."
        ),
    )

    def decorated(command: Command) -> Command:
        for option in reversed(options):  # decorators apply from the last one up
            command = option(command)
        return command

    return decorated
