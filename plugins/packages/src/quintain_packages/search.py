"""`quintain search`: words in a registry."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from .add import REGISTRY


@click.command()
@click.argument("text")
@click.option("--kind", default="", help="Only plugins with a component of this kind.")
@REGISTRY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def search(text: str, kind: str, registry: str, as_json: bool) -> int:
    """Find the plugins of a registry that have all words of TEXT in their name, description, tags or
    components.

    Without --registry, the one that comes with this package is searched, without a network.

    Exit status: 0 found, 1 nothing, 2 a wrong registry or kind.

    \b
    quintain search sandbox
    quintain search "multi-turn games" --kind environment
    """
    from quintain.errors import UnknownNameError
    from quintain.registry import KINDS

    from .installer import installed
    from .records import read_registry

    if kind and kind not in KINDS.values():
        raise UnknownNameError.of("kind", kind, KINDS.values())
    words = text.lower().split()
    here, found = installed(), []
    for record in read_registry(registry):
        told = " ".join((record.name, record.summary, *record.tags, *record.provides)).lower()
        kinds = {entry.partition(":")[0] for entry in record.provides}
        if all(word in told for word in words) and (not kind or kind in kinds):
            found.append(record)
    if as_json:
        rows = [asdict(r) | {"installed": here.get(r.name)} for r in found]
        click.echo(json.dumps({"plugins": rows}))
        return 0 if found else 1
    for record in found:
        state = f" (installed: {here[record.name]})" if record.name in here else ""
        click.echo(f"{record.name}{state}\n  {record.summary}")
        click.echo(f"  {', '.join(entry.replace(':', ' ') for entry in record.provides)}")
    if not found:
        click.echo(f"nothing in the registry has {text!r}", err=True)
    return 0 if found else 1
