"""``quintain doctor``: import and time every component, and compare it with its manifest."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import click

from quintain.cli import Component, current, normalise
from quintain.errors import UnknownNameError

from .plugin_checks import Finding, examine

COLOURS = {"ok": "green", "extra": "yellow", "error": "red"}
LIBRARIES = ("torch", "transformers", "datasets", "pyarrow", "peft")


@click.command("doctor")
@click.argument("distributions", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--timeout", default=180.0, show_default=True, help="Seconds for the components of one distribution.")
def doctor(distributions: tuple[str, ...], as_json: bool, timeout: float) -> int:
    """Import and time every component (of DISTRIBUTIONS, if named) and report errors.

    Each distribution is imported in a separate process, so that a crash or a hang is one row of the report. The exit
    status is 1 if a component is broken; a component whose optional extra is not installed is not broken.
    """
    findings = examine(chosen(distributions), timeout=timeout)
    broken = [f for f in findings if f.status == "error"]
    if as_json:
        report = {"ok": not broken, "versions": versions(), "components": [asdict(f) for f in findings]}
        click.echo(json.dumps(report, indent=2))
    else:
        print_findings(findings)
        click.echo(f"{len(findings) - len(broken)} of {len(findings)} components are fine")
    return 1 if broken else 0


def chosen(distributions: tuple[str, ...]) -> list[Component]:
    """The components of *distributions*; all if empty.

    Raises:
        UnknownNameError: a distribution is not installed, or has no components.
    """
    components = current().components()
    names = {c.distribution for c in components}
    for name in distributions:
        if normalise(name) not in names:
            raise UnknownNameError.of("distribution with components", name, names)
    return [c for c in components if not distributions or c.distribution in {normalise(d) for d in distributions}]


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries of the extras; empty if not installed."""
    installed = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            installed[library] = version(library)
        except PackageNotFoundError:
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
