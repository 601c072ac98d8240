"""``quintain list``: every component, from metadata and manifests alone."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING

import click

from quintain.cli import json_option
from quintain.errors import PluginError, UnknownNameError
from quintain.registry import KINDS, Component, Entry, Manifest, Registry, current

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A component in the listing. *error* is empty if it is sound, *source* if the manifest names
    no paper.
    """

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


ALIASES = {
    "env": "environment",
    "envs": "environment",
    "algo": "algorithm",
    "algos": "algorithm",
    "tracker": "hooks",
}
ALIASES |= {
    "trackers": "hooks",
    "plugin": "hooks",
    "plugins": "hooks",
    "curricula": "curriculum",
    "hook": "hooks",
}
"""Other words for a kind."""

NAMES_AT = 20
"""Column of the names of a kind."""

SECTIONS = {
    "Train on": ("environment", "reward"),
    "Learn by": ("algorithm", "schedule", "learner"),
    "Sample with": ("engine", "model", "tool_format"),
    "Use in a run": ("service", "hooks"),
}
"""The kinds that a user picks from, as `quintain list` shows them."""


def kind_of(text: str) -> str:
    """Return the kind *text*, singular or plural; ``env`` and ``envs`` are environments.

    Raises:
        UnknownNameError: no such kind.
    """
    word = text.strip().lower()
    for group, kind in KINDS.items():
        if ALIASES.get(word, word) in (kind, f"{kind}s", group):
            return kind
    raise UnknownNameError.of(
        "kind",
        text,
        [*KINDS.values(), *(f"{k}s" for k in KINDS.values())],
        f"Kinds: {', '.join(KINDS.values())}",
    )


def is_kind(text: str) -> bool:
    """Return whether *text* is a word for a kind, as `kind_of` reads it."""
    try:
        return bool(kind_of(text))
    except UnknownNameError:
        return False


def clash(component: Component, registry: Registry) -> str:
    """Return the distributions with a component of the same kind and name, and the unambiguous id;
    empty for none.
    """
    named = registry.matching(component.name, component.kind)
    others = [
        c.distribution
        for c in named
        if c.distribution != component.distribution and c.origin != "local"
    ]
    return f"{', '.join(others)} uses the same name; write {component.id!r}" if others else ""


def line_of(component: Component, registry: Registry) -> Line:
    """Return the line of *component*, without importing it; a broken manifest becomes its
    `error`.
    """
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
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All kinds; with KIND, whole summaries and sources, also beyond the screen.",
)
@json_option
def list_(kind: str | None, every: bool, as_json: bool) -> None:
    """List the names of installed components, or those of one KIND with a summary each.

    KIND is environments, rewards, algorithms, engines, services or another name in the first
    column. Reads metadata, with KIND also manifests, and imports no plugin; `quintain doctor`
    reports components that fail to import.

    On a terminal, a table that is longer than the screen has one line for each component; --all
    prints all of it, as does a pipe.
    """
    registry = current()
    components = registry.components(kind_of(kind) if kind else None)
    if components and not kind and not as_json:
        print_names(components, every=every)
        return
    lines = [line_of(c, registry) for c in components]
    if as_json:
        click.echo(json.dumps({"components": [asdict(line) for line in lines]}, indent=2))
    elif not lines:
        click.echo("nothing installed" + (f" of the kind {kind!r}" if kind else ""))
    else:
        print_table(lines, every=every)


def print_to(console: Console, table: Table) -> None:
    """Print *table*, without blanks at the end of a line where the output is no terminal."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as text:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in text.get().splitlines()))


def print_names(components: Sequence[Component], *, every: bool) -> None:
    """Print the names of each kind of `SECTIONS`, or of every kind, then the names that clash.

    A terminal gets lines of its width, a pipe one line for each kind. Nothing but the metadata of
    distributions is read, since a listing is asked for often.
    """
    names: dict[str, list[str]] = {}
    owners: dict[tuple[str, str], list[str]] = {}
    for component in components:
        names.setdefault(component.kind, []).append(component.name)
        owners.setdefault((component.kind, component.name), []).append(component.distribution)
    shown = set(chain.from_iterable(SECTIONS.values()))
    rest = tuple(kind for kind in names if kind not in shown)
    for title, kinds in {**SECTIONS, **({"Others": rest} if every else {})}.items():
        present = [kind for kind in kinds if kind in names]
        if present:
            click.secho(title, bold=True)
        for kind in present:
            click.echo(_wrapped(f"  {kind} ({len(names[kind])}) ", names[kind]))
    for (kind, name), distributions in owners.items():
        if len(distributions) > 1:
            click.secho(
                f"error: {kind} {name!r} is in {' and '.join(distributions)}; write "
                f"{distributions[0]}/{name}",
                fg="red",
            )
    more = "" if every else f"--all shows {', '.join(rest)}; "
    click.secho(
        f"{more}`quintain list KIND` adds summaries, `quintain info NAME` describes a component.",
        dim=True,
    )


def _wrapped(head: str, names: Sequence[str]) -> str:
    """Return *head* and the names beside it, in lines as wide as the terminal; in a pipe one line."""
    line = f"{head:{NAMES_AT}}{', '.join(names)}"
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(line, columns, subsequent_indent=" " * NAMES_AT, break_on_hyphens=False)


def print_table(lines: list[Line], *, every: bool = False) -> None:
    """Print a table of components of one kind; a broken one shows its error instead of its summary.

    Without *every*, a table that is longer than the terminal has one line for each component.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if Console().is_terminal else 160)
    sourced = any(line.source for line in lines)
    apart = sourced and console.width >= 120  # a narrow terminal has the source below the summary
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "what it is", *(["source"] if apart else []), "from"):
        table.add_column(title, overflow="fold")
    for line in lines:
        summary = Text(line.summary + (f" (needs {', '.join(line.needs)})" if line.needs else ""))
        if line.error:
            summary = Text(f"error: {line.error}", style="red")
        elif line.source and not apart:
            summary.append(f"\n{line.source}", style="dim")
        source = [Text(line.source, style="dim")] if apart else []
        table.add_row(
            Text(line.name, style="cyan"), summary, *source, Text(line.distribution, style="dim")
        )
    with console.capture() as text:
        console.print(table)
    if every or not console.is_terminal or text.get().count("\n") < console.height:
        print_to(console, table)
        return
    width = max(len(line.name) for line in lines)
    for line in lines:
        summary = Text(f"error: {line.error}", style="red") if line.error else Text(line.summary)
        row = Text.assemble((f"{line.name:{width}}  ", "cyan"), summary)
        row.truncate(console.width, overflow="ellipsis")
        console.print(row)
    console.print("`--all` shows whole summaries, sources and distributions.", style="dim")
