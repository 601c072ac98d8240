"""Options that commands about environments share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quintain.errors import UsageError

if TYPE_CHECKING:
    from quintain.services import Choice

F = TypeVar("F", bound=Callable[..., Any])


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
    from quintain.recipe import parsed_override, with_model
    from quintain.registry import current
    from quintain.services import find_service

    under = under or {}
    names = {slot: choice.use for slot, choice in under.items()}
    for pair in pairs:
        slot, _, name = (part.strip() for part in pair.partition("="))
        if not slot or not name:
            raise UsageError(f"--service {pair!r}: expected SLOT=NAME, as in judge=llm")
        names[slot] = name
    settings: dict[str, list[str]] = {}
    for pair in args:
        path = parsed_override(pair)[0]
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
    from quintain.recipe import parsed_override
    from quintain.registry import signature_of

    fields = {f.name: f for f in signature_of(component).fields}
    values: dict[str, Any] = {}
    for pair in pairs:
        (key, *rest), value, written = parsed_override(pair)
        if rest:
            raise UsageError(f"{option} {pair!r}: expected KEY=VALUE without a dot in the key")
        text = key in fields and fields[key].type is str and not isinstance(value, str)
        values[key] = written if text else value
    return values
