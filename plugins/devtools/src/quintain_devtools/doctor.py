"""``quintain doctor``: import and time every component, compare it with its manifest, and show what plugins find."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Any

import click

from quintain.cli import KINDS, Component, current, normalise
from quintain.errors import UnknownNameError, did_you_mean

from .plugin_checks import Finding, examine
from .sections import Section, declared, sections

COLOURS = {"ok": "green", "extra": "yellow", "error": "red"}
LIBRARIES = ("torch", "transformers", "datasets", "pyarrow", "peft")


GROUP = "quintain_devtools.doctor"
"""Entry-point group of click commands that ``quintain doctor NAME`` runs."""


class Doctor(click.Command):
    """The command, or the one of another distribution that the first argument names."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        for entry_point in metadata.entry_points(group=GROUP, name=args[0]) if args else ():
            command: click.Command = entry_point.load()
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("doctor", cls=Doctor)
@click.argument("distributions", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--timeout", default=180.0, show_default=True, help="Seconds for the components of one distribution.")
def doctor(distributions: tuple[str, ...], as_json: bool, timeout: float) -> int:
    """Import and time every component (of DISTRIBUTIONS, if named) and report errors.

    Each distribution is imported in a separate process, so that a crash or a hang is one row of the report. Sections
    of plugins follow, such as what the sandboxes of quintain-sandbox enforce on this machine. The exit status is 1 if a
    component is broken; a component whose optional extra is not installed is not broken.
    """
    names = {normalise(d) for d in distributions}
    unknown = {f: f.id.partition("/")[0] for f in unknown_groups()}
    findings = [f for f, owner in unknown.items() if not names or owner in names]
    findings += examine(chosen(names, [*unknown.values(), *(owner for owner, _ in declared())]), timeout=timeout)
    shown, failed = sections(names, timeout=timeout)
    findings += failed
    broken = [f for f in findings if f.status == "error"]
    if as_json:
        report = {"ok": not broken, "versions": versions(), "components": [asdict(f) for f in findings]}
        click.echo(json.dumps(report | {"sections": {s.name: asdict(s) for s in shown}}, indent=2))
    else:
        print_findings(findings)
        print_sections(shown)
        click.echo(f"{len(findings) - len(broken)} of {len(findings)} components are fine")
    return 1 if broken else 0


def unknown_groups() -> Iterator[Finding]:
    """Entry points in groups that begin with ``quintain.`` and that no kind of component has."""
    for distribution in metadata.distributions():
        for e in distribution.entry_points:
            if e.group.startswith("quintain.") and e.group not in KINDS:
                message = (
                    f"entry-point group {e.group!r} of {distribution.name} is unknown{did_you_mean(e.group, KINDS)}"
                )
                name = f"{normalise(distribution.name)}/{e.name}"
                yield Finding(kind=e.group, id=name, seconds=0.0, status="error", message=message)


def chosen(distributions: Collection[str], others: Iterable[str] = ()) -> list[Component]:
    """The components of *distributions*, all if empty; *others* are distributions without components.

    Raises:
        UnknownNameError: a distribution is not installed, or has no components.
    """
    components = current().components()
    names = {*others, *(c.distribution for c in components)}
    for name in distributions:
        if name not in names:
            raise UnknownNameError.of("distribution with components", name, names)
    return [c for c in components if not distributions or c.distribution in distributions]


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries of the extras; empty if not installed."""
    installed = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            installed[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            installed[library] = ""
    return installed


def print_findings(findings: list[Finding]) -> None:
    """Print *findings* on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True)
    console.print(Text(", ".join(f"{k} {v or 'not installed'}" for k, v in versions().items()), style="dim"))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("kind", "component", "seconds", "status"):
        table.add_column(title, no_wrap=True, justify="right" if title == "seconds" else "left")
    for f in findings:
        status = Text(f.status, style=COLOURS[f.status])
        table.add_row(f.kind, Text(f.id, style="cyan"), f"{f.seconds:.2f}", status)
    console.print(table)
    for f in findings:
        if f.message:
            console.print(Text(f"{f.status}: {f.message}", style=COLOURS[f.status]))


def print_sections(shown: Collection[Section]) -> None:
    """Print *shown* on the terminal: a table each, and its notes."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True)
    for section in shown:
        console.print(Text(f"\n{section.name}", style="bold"), Text(f"({section.seconds:.1f} s)", style="dim"))
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in section.columns:
            table.add_column(Text(title), no_wrap=True)
        for row in section.rows:
            table.add_row(*map(Text, row))
        if section.columns:
            console.print(table)
        for note in section.notes:
            console.print(Text(note))
    if shown:
        console.print()
