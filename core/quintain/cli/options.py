"""Options on the command line that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def set_option(command: F) -> F:
    """Add ``--set`` to a command that takes a recipe; its argument is ``overrides``."""
    return click.option(
        "--set",
        "-s",
        "overrides",
        multiple=True,
        metavar="A.B=VALUE",
        help="Set a recipe key (repeatable).",
    )(command)


def arg_option(command: F) -> F:
    """Add ``--arg`` to a command that takes an environment; its argument is ``args``."""
    return click.option(
        "--arg",
        "-a",
        "args",
        multiple=True,
        metavar="KEY=VALUE",
        help="Field of the environment (repeatable).",
    )(command)


def folder_option(command: F) -> F:
    """Add ``--folder`` to a command that takes a run."""
    return click.option(
        "--folder", default="runs", show_default=True, help="Parent folder of the run folders."
    )(command)


def quiet_option(command: F) -> F:
    """Add ``--quiet`` to a command that shows its progress."""
    return click.option("--quiet", "-q", is_flag=True, help="Show warnings only.")(command)


def json_option(command: F) -> F:
    """Add ``--json`` to a command that programs read; its argument is ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


class CommandWithHints(click.Command):
    """A command whose error for an unknown option names the words that do the same.

    Args:
        replacements: by option, in lower case and with ``_``; ``{}`` is the value.
    """

    def __init__(self, *args: Any, replacements: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replacements = replacements

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [*args]  # click takes them out of the list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            replacement = self.replacements.get(e.option_name.lstrip("-").replace("-", "_").lower())
            if replacement is None:
                raise
            position = next(
                i for i, word in enumerate(words) if word.partition("=")[0] == e.option_name
            )
            value = words[position].partition("=")[2] or next(iter(words[position + 1 :]), "VALUE")
            words_instead = replacement.format(shlex.quote(value))
            raise click.UsageError(
                f"no such option {e.option_name}: write {words_instead}", ctx
            ) from e


class Count(click.IntRange):
    """A whole number >= *least*."""

    name = "number"

    def __init__(self, least: int) -> None:
        super().__init__(min=least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"expected a whole number of at least {self.min}, got {str(value)[:100]!r}",
                param,
                ctx,
            )
