"""``quintain info``: one component, with its configuration. Imports that component and nothing else."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ..errors import PluginError, UnknownNameError
from ..plugins.discovery import Component, kind_of
from ..plugins.registry import Registry, current
from .listing import Line, line_of

if TYPE_CHECKING:
    from ..plugins.binding import Field

RECIPE = {
    "environment": '[[environments]]\nuse = "{use}"',
    "reward": '[[environments]]\nuse = "..."\nreward = "{use}"',
    "engine": '[engine]\nuse = "{use}"',
    "service": '[services.SLOT]\nuse = "{use}"',
    "algorithm": '[algorithm]\nuse = "{use}"',
}
"""How a recipe asks for a component of each kind."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """A component's line in the listing, and what importing it told."""

    line: Line
    doc: str = ""
    fields: tuple[dict[str, Any], ...] = ()
    needs: tuple[dict[str, str], ...] = ()
    controls: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data. ``needs`` of the manifest (docker, network ...) are ``requires``; ``needs`` are the services."""
        line = asdict(self.line)
        return {
            **line,
            "requires": line["needs"],
            "doc": self.doc,
            "fields": [{k: v for k, v in f.items() if k != "shown"} for f in self.fields],
            "needs": list(self.needs),
            "controls": list(self.controls),
        }


def details_of(component: Component, registry: Registry) -> Details:
    """Everything known of *component*; where it cannot be imported, what its manifest says, with the error."""
    from ..plugins.binding import signature_of

    line = line_of(component, registry)
    try:
        loaded = registry.resolve(component)
        if component.kind in ("command", "hooks"):
            return Details(line=line, doc=inspect.getdoc(loaded) or "")
        signature = signature_of(loaded)
    except PluginError as e:
        return Details(line=_with_error(line, str(e)))
    return Details(
        line=line,
        doc=signature.doc,
        fields=tuple(_field(f) for f in signature.fields),
        needs=tuple({"slot": s.slot, "parameter": s.parameter, "type": s.type_name} for s in signature.needs),
        controls=tuple(loaded.controls()) if component.kind == "environment" and hasattr(loaded, "controls") else (),
    )


def _with_error(line: Line, error: str) -> Line:
    return Line(**{**asdict(line), "error": "\n".join(filter(None, (line.error, error)))})


def _field(field: Field) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": field.name, "type": field.type_name, "required": field.required, "doc": field.doc}
    if field.required:
        return shown
    plain = field.default is None or isinstance(field.default, (str, int, float, bool))
    return {**shown, "default": field.default if plain else repr(field.default), "shown": repr(field.default)}


def matching(name: str, registry: Registry) -> list[Component]:
    """The components that *name* means: ``name``, ``distribution/name``, each perhaps after ``kind:``, or
    ``module:Attribute``.

    Raises:
        UnknownNameError: none.
    """
    head, colon, rest = name.partition(":")
    try:
        kind = kind_of(head) if colon else None
    except UnknownNameError:
        return [registry.find("environment", name)]
    found = registry.matching(rest if kind else name, kind)
    if not found:
        known = (c.name for c in registry.components(kind))
        raise UnknownNameError.of(kind or "component", rest or name, known, "`quintain list --all` shows all")
    return found


@click.command("info")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def info(name: str, as_json: bool) -> int:
    """Show what NAME is and how a recipe configures it.

    NAME is a component (`grpo`), one of a certain distribution (`quintain-shaping/format_tags`), of a kind
    (`reward:math_equal`), or code of your own (`module:Attribute`). Only that component is imported.
    """
    registry = current()
    found = [details_of(c, registry) for c in matching(name, registry)]
    if as_json:
        click.echo(json.dumps({"components": [d.to_json() for d in found]}, indent=2, default=str))
    else:
        for details in found:
            print_details(details)
    return 1 if any(d.line.error for d in found) else 0


def print_details(details: Details) -> None:
    """For people."""
    from rich.console import Console
    from rich.text import Text

    console, line = Console(), details.line
    console.print(
        Text.assemble((line.name, "bold cyan"), f"  {line.kind} of {line.distribution} {line.version} ({line.origin})")
    )
    for label, text in (
        ("", line.summary),
        ("tags", ", ".join(line.tags)),
        ("needs", ", ".join(line.needs)),
        ("licence", line.licence),
        ("controls", ", ".join(details.controls)),
    ):
        if text:
            console.print(Text(f"{label}: {text}" if label else text))
    if line.error:
        console.print(Text(f"error: {line.error}", style="red"))
    if details.fields or details.needs:
        console.print(_table(details))
    if details.doc and not details.line.error:
        console.print(Text("\n" + details.doc, style="dim"))
    if line.kind in RECIPE and not line.error:
        console.print(Text("\nIn a recipe:\n" + RECIPE[line.kind].format(use=line.name), style="green"))


def _table(details: Details) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("field", "type", "default", "meaning"):
        table.add_column(title, overflow="fold")
    for f in details.fields:
        default = f.get("shown", "required")
        table.add_row(Text(f["name"], style="cyan"), Text(f["type"]), Text(default), Text(f["doc"]))
    for n in details.needs:
        table.add_row(Text(n["parameter"], style="cyan"), Text(n["type"]), f"\\[services.{n['slot']}]", "a service")
    return table
