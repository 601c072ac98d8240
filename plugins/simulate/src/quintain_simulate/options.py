"""Options that both commands have: the recipe's keys, and the setup of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from quintain.cli import set_option

Function = TypeVar("Function", bound=Callable[..., Any])


def setup_options(function: Function) -> Function:
    """Give a command that simulates a recipe the options ``--set``, ``--setup`` and ``--with``; its
    arguments are ``overrides``, ``setup`` and ``changes``.
    """
    setup = click.option(
        "--setup",
        "-f",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="TOML file of the cluster, the episodes and the assumptions.",
    )
    changes = click.option(
        "--with",
        "-w",
        "changes",
        multiple=True,
        metavar="A.B=VALUE",
        help="Set a key of the setup, as in -w model=8b (repeatable).",
    )
    return set_option(setup(changes(function)))
