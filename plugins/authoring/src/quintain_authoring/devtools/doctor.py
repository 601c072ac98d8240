"""``quintain doctor``: import and time every component, compare it with its manifest, and show what
plugins find.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from importlib import metadata
from typing import Any

import click

from quintain.cli import json_option
from quintain.errors import UnknownNameError, did_you_mean
from quintain.registry import KINDS, Component, current, normalise, without_components

from .host import versions
from .listing import print_to
from .plugin_checks import Finding, examine
from .sections import Section, declared, sections

COLOURS = {"ok": "green", "extra": "magenta", "error": "red"}


@click.command("doctor")
@click.argument("distributions", nargs=-1)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Show a row for every component, also for those without errors.",
)
@json_option
@click.option(
    "--timeout",
    default=180.0,
    show_default=True,
    help="Seconds for the components of one distribution.",
)
def doctor(distributions: tuple[str, ...], every: bool, as_json: bool, timeout: float) -> int:
    """Describe this machine, import every component (of DISTRIBUTIONS, if named) and report errors.

    Each distribution is imported in a separate process, so that a crash or a hang is one row of the
    report. The section "host" has versions, devices, memory and disks; copy it into a bug report.
    Other sections come from plugins, such as what the sandboxes of quintain-sandbox enforce. The
    exit status is 1 if a component is broken; a component whose optional extra is not installed is
    not broken.
    """
    names = {normalise(d) for d in distributions}
    unknown = {f: f.id.partition("/")[0] for f in unknown_groups()}
    findings = [f for f, owner in unknown.items() if not names or owner in names]
    components = chosen(names, [*unknown.values(), *(owner for owner, _ in declared())])
    with _waiting("looking at this machine ..."):
        shown, failed = sections(names, timeout=timeout)
    if not as_json:
        print_sections(shown)  # before the imports, which take longer
    with _waiting(f"importing {len(components)} components, up to a minute ..."):
        findings += examine(components, timeout=timeout)
    findings += failed
    broken = [f for f in findings if f.status == "error"]
    if as_json:
        report = {
            "ok": not broken,
            "versions": {"python": platform.python_version()} | versions(),
            "components": [asdict(f) for f in findings],
        }
        click.echo(json.dumps(report | {"sections": {s.name: asdict(s) for s in shown}}, indent=2))
    else:
        print_findings(findings, every=every)
    return 1 if broken else 0


def unknown_groups() -> Iterator[Finding]:
    """Find entry points in groups that begin with ``quintain.`` but that no component kind has."""
    for distribution in metadata.distributions():
        for e in distribution.entry_points:
            if e.group.startswith("quintain.") and e.group not in KINDS:
                message = (
                    f"entry-point group {e.group!r} of {distribution.name} is "
                    f"unknown{did_you_mean(e.group, KINDS)}"
                )
                name = f"{normalise(distribution.name)}/{e.name}"
                yield Finding(kind=e.group, id=name, seconds=0.0, status="error", message=message)


def chosen(distributions: Collection[str], others: Iterable[str] = ()) -> list[Component]:
    """Return the components of *distributions*, all if empty; *others* are distributions without
    components.

    Raises:
        UnknownNameError: a distribution is not installed, or has no components.
    """
    components = current().components()
    names = {*others, *(c.distribution for c in components)}
    for name in distributions:
        if name not in names:
            if undeclared := without_components(name):
                raise UnknownNameError(undeclared)
            raise UnknownNameError.of("distribution with components", name, names)
    return [c for c in components if not distributions or c.distribution in distributions]


def _waiting(what: str) -> AbstractContextManager[Any]:
    """Show *what* on standard error while it lasts, on a terminal."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def print_findings(findings: list[Finding], *, every: bool) -> None:
    """Print the findings with a message (all, if *every*) on the terminal, and a summary."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True)
    if every:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("kind", "component", "seconds", "status"):
            table.add_column(title, no_wrap=True, justify="right" if title == "seconds" else "left")
        for f in findings:
            status = Text(f.status, style=COLOURS[f.status])
            table.add_row(f.kind, Text(f.id, style="cyan"), f"{f.seconds:.2f}", status)
        print_to(console, table)
    for f in findings:
        if f.message:
            text = f.message if f.id in f.message else f"{f.kind} {f.id}: {f.message}"
            console.print(Text(f"{f.status}: {text}", style=COLOURS[f.status]))
    counts = Counter(f.status for f in findings)
    parts = [f"{counts['ok']} of {len(findings)} components are fine"]
    parts += [f"{counts['extra']} without their optional extra"] if counts["extra"] else []
    parts += [f"{counts['error']} broken"] if counts["error"] else []
    console.print(", ".join(parts) + ("" if every else " (--all shows each)"), highlight=False)


def print_sections(shown: Collection[Section]) -> None:
    """Print *shown* on the terminal: a table each, and its notes."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for section in sorted(shown, key=lambda s: s.name != "host"):
        console.print(Text(section.name, style="bold"))
        table = Table(
            box=None, header_style="bold", pad_edge=False, show_header=any(section.columns)
        )
        for i, title in enumerate(section.columns, start=1):
            table.add_column(Text(title), no_wrap=i < len(section.columns), overflow="fold")
        for row in section.rows:
            table.add_row(*map(Text, row))
        if section.columns:
            print_to(console, table)
        for note in section.notes:
            console.print(Text(note), soft_wrap=True)
        console.print()
