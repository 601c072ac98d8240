"""`quintain runs`: the runs of a folder."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command(help="List runs with their progress and held-out accuracy.")
@click.option("--folder", default="runs", show_default=True, help="Parent folder of the run folders.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run and line.")
def runs(folder: str, as_json: bool) -> None:
    from ..training.runs import list_runs
    from ..training.screen import printable, program

    infos = list_runs(folder)
    if as_json:
        for run in infos:
            click.echo(json.dumps(asdict(run), default=str))
        return
    if not infos:
        click.echo(f"no runs in {folder!r}; start one with: {program()} train")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("run", "state", "environments", "model", "step", "held-out"):
        table.add_column(title, overflow="fold")
    for run in infos:
        accuracy = "" if run.accuracy is None else f"{run.accuracy:.1%}"
        state = f"{run.state}: {run.fault}" if run.fault else run.state
        row = (run.name, state, ", ".join(run.environments), run.model, f"{run.step}/{run.steps}", accuracy)
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if Console().is_terminal else 10_000).print(table)  # a pipe has no width
