"""Options on the command line that several commands share, and what they mean."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UsageError

if TYPE_CHECKING:
    from ..services.manager import Choice

F = TypeVar("F", bound=Callable[..., Any])


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


def service_options(command: F) -> F:
    """Add ``--service`` and ``--service-arg``, whose values `services_of` reads."""
    service = click.option(
        "--service",
        "services",
        multiple=True,
        metavar="SLOT=NAME",
        help="Service of a slot (repeatable).",
    )
    argument = click.option(
        "--service-arg",
        "service_args",
        multiple=True,
        metavar="SLOT.KEY=VALUE",
        help="Setting of a service.",
    )
    return service(argument(command))


def services_of(
    pairs: Sequence[str], args: Sequence[str], under: Mapping[str, Choice] | None = None
) -> dict[str, Choice]:
    """Return the service of each slot in ``--service`` and ``--service-arg``; by default that of
    *under*, with its settings under those that are given, else the service named like the slot.
    """
    from ..recipe.resolve import with_model
    from ..recipe.tables import override
    from ..registry.lookup import current
    from ..services.manager import find_service

    under = under or {}
    names = {slot: choice.use for slot, choice in under.items()}
    for pair in pairs:
        slot, _, name = (part.strip() for part in pair.partition("="))
        if not slot or not name:
            raise UsageError(f"--service {pair!r}: expected SLOT=NAME, as in judge=llm")
        names[slot] = name
    settings: dict[str, list[str]] = {}
    for pair in args:
        path = override(pair)[0]
        if len(path) != 2:
            raise UsageError(
                f"--service-arg {pair!r}: expected SLOT.KEY=VALUE, as in judge.base_url=http://..."
            )
        settings.setdefault(path[0], []).append(pair.partition(".")[2])
    choices: dict[str, Choice] = {}
    for slot in [*names, *(s for s in settings if s not in names)]:
        use = names.get(slot, slot)
        component = current().resolve(find_service(use))
        service_args = arguments_of(settings.get(slot, ()), component, "--service-arg")
        choices[slot] = with_model(
            use, {**(under[slot].args if slot in under else {}), **service_args}
        )
    return choices


def arguments_of(pairs: Sequence[str], component: Any, option: str) -> dict[str, Any]:
    """Parse ``key=value`` options; a value is TOML, or plain text if the field is text."""
    from ..recipe.tables import override
    from ..registry.binding import signature_of

    fields = {f.name: f for f in signature_of(component).fields}
    values: dict[str, Any] = {}
    for pair in pairs:
        (key, *rest), value, written = override(pair)
        if rest:
            raise UsageError(f"{option} {pair!r}: expected KEY=VALUE without a dot in the key")
        text = key in fields and fields[key].type is str and not isinstance(value, str)
        values[key] = written if text else value
    return values
