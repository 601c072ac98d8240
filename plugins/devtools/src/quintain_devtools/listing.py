"""``quintain list``: every component, from metadata and manifests alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from quintain.cli import KINDS, Component, Entry, Manifest, Registry, current
from quintain.errors import PluginError, UnknownNameError


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A component in the listing. *error* is empty if it is sound, *source* if the manifest names no paper."""

    kind: str
    name: str
    id: str
    distribution: str
    version: str
    origin: str
    summary: str = ""
    tags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    licence: str = ""
    source: str = ""
    error: str = ""


def kind_of(text: str) -> str:
    """The kind *text*, singular or plural.

    Raises:
        UnknownNameError: no such kind.
    """
    for group, kind in KINDS.items():
        if text.strip().lower() in (kind, f"{kind}s", group):
            return kind
    raise UnknownNameError.of(
        "kind", text, [*KINDS.values(), *(f"{k}s" for k in KINDS.values())], f"Kinds: {', '.join(KINDS.values())}"
    )


def clash(component: Component, registry: Registry) -> str:
    """The distributions with a component of the same kind and name, and the unambiguous id; empty for none."""
    named = registry.matching(component.name, component.kind)
    others = [c.distribution for c in named if c.distribution != component.distribution and c.origin != "local"]
    return f"{', '.join(others)} uses the same name; write {component.id!r}" if others else ""


def line_of(component: Component, registry: Registry) -> Line:
    """The line of *component*, without importing it; a broken manifest becomes its `error`."""
    manifest, entry, error = Manifest(api=0), None, ""
    try:
        manifest = registry.manifest(component) or manifest
        entry = manifest.entry(component)
    except PluginError as e:
        error = str(e)
    entry = entry or Entry(kind=component.kind, name=component.name, summary="")
    return Line(
        kind=component.kind,
        name=component.name,
        id=component.id,
        distribution=component.distribution,
        version=component.version,
        origin=component.origin,
        summary=entry.summary,
        tags=(*manifest.tags, *entry.tags),
        needs=entry.needs,
        licence=manifest.licence,
        source=entry.source,
        error=error or clash(component, registry),
    )


@click.command("list")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(kind: str | None, as_json: bool) -> None:
    """List all installed components, or those of one KIND (environments, rewards, algorithms, engines, services ...).

    Reads metadata and manifests and imports no plugin; `quintain doctor` reports those that fail to import.
    """
    registry = current()
    lines = [line_of(c, registry) for c in registry.components(kind_of(kind) if kind else None)]
    if as_json:
        click.echo(json.dumps({"components": [asdict(line) for line in lines]}, indent=2))
        return
    if lines:
        print_table(lines)
    else:
        click.echo("nothing installed" + (f" of the kind {kind!r}" if kind else ""))


def print_table(lines: list[Line]) -> None:
    """Print a table; a broken component shows its error instead of its summary."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if Console().is_terminal else 160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    sourced = any(line.source for line in lines)
    for title in ("kind", "name", "from", "what it is", *(["source"] if sourced else [])):
        table.add_column(title, overflow="fold", no_wrap=title == "kind")
    for line in lines:
        about = line.summary + (f" (needs {', '.join(line.needs)})" if line.needs else "")
        text = Text(f"error: {line.error}", style="red") if line.error else Text(about)
        origin = Text(f"{line.distribution} {line.version}", style="dim")
        source = [Text(line.source, style="dim")] if sourced else []
        table.add_row(line.kind, Text(line.name, style="cyan"), origin, text, *source)
    console.print(table)
