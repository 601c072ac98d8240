"""`quintain packages`: the registry of plugins. pip installs them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from quintain.errors import UnknownNameError
from quintain.registry import KINDS

from .records import CHECKS, PluginRecord, find_record, read_registry, record_lines
from .wheel_file import WheelFile, faults

registry_option = click.option(
    "--registry",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another registry; without it, the one that comes with this package.",
)


@click.group(no_args_is_help=True)
def packages() -> None:
    """Find plugins in a registry, show one, compare a wheel with it. pip installs them.

    \b
    quintain packages find sandbox
    quintain packages show guess
    pip download --no-deps quintain-env-games
    quintain packages verify quintain_env_games-0.1.0-py3-none-any.whl
    """


@packages.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--kind", help="Only plugins with a component of this kind.")
@registry_option
def find(words: tuple[str, ...], kind: str | None, registry: Path | None) -> int:
    """Find the plugins that have all WORDS in their name, description, tags or components.

    Exit status: 0 found, 1 nothing, 2 a wrong registry or kind.
    """
    if kind is not None and kind not in KINDS.values():
        raise UnknownNameError.of("kind", kind, KINDS.values())
    found = [record for record in read_registry(registry) if record.has(words)]
    if kind is not None:
        found = [one for one in found if any(p.startswith(f"{kind}:") for p in one.provides)]
    for record in found:
        click.echo(f"{_head(record)}\n  {_components(record)}")
    if not found:
        click.echo(f"nothing in the registry has {' '.join(words)!r}", err=True)
    return 0 if found else 1


@packages.command()
@click.argument("plugin", metavar="NAME|WHEEL")
@registry_option
def show(plugin: str, registry: Path | None) -> None:
    """Show the record of a plugin, and the requirement that pip installs.

    NAME is a distribution or one of its components. Of a WHEEL, the record is printed that a
    registry would have, with its hash.
    """
    if plugin.endswith(".whl"):
        click.echo("\n".join(record_lines(WheelFile(Path(plugin)).own_record())))
        return
    record = find_record(read_registry(registry), plugin)
    rows = {
        "source": record.source,
        "licence": record.licence or "not said",
        "brings": _components(record),
        "needs": ", ".join(filter(None, [*record.needs, record.memory])) or "nothing else",
        "checks": CHECKS[record.check],
        "pip": record.requirement(),
    }
    click.echo(_head(record))
    for name, text in rows.items():
        click.echo(f"  {name:<10}{text}")


@packages.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@registry_option
def verify(wheel: Path, registry: Path | None) -> int:
    """Compare a WHEEL with its record, and say what of it runs although nobody names it.

    Exit status: 0 the same, 1 different, 2 no record or no wheel.
    """
    read = WheelFile(wheel)
    record = find_record(read_registry(registry), read.header("Name"))
    for line in read.runs_unasked():
        click.echo(f"runs: {line}")
    found = faults(read, record)
    for fault in found:
        click.echo(f"{wheel.name}: {fault}", err=True)
    if not found:
        pinned = "its hash is the registry's" if record.hashes else "the registry names no hash"
        click.echo(f"{wheel.name} is what the registry says ({pinned})")
    return 1 if found else 0


def _head(record: PluginRecord) -> str:
    try:
        installed = f" (installed: {version(record.name)})"
    except PackageNotFoundError:
        installed = ""
    return f"{record.name}{installed}: {record.summary}"


def _components(record: PluginRecord) -> str:
    return ", ".join(entry.replace(":", " ") for entry in record.provides)
