"""`quintain runs`: the runs of a folder."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from quintain.errors import QuintainError
from quintain.training import RunFolder, label, lock_owner, printable, program

State = Literal["preparing", "running", "finished", "stopped", "crashed"]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A row of ``quintain runs``.

    A ``crashed`` run is one whose process was killed; ``changed`` is in seconds since 1970; ``fault`` says why a folder
    cannot be read.
    """

    name: str
    path: Path
    state: State
    model: str = ""
    environments: tuple[str, ...] = ()
    step: int = 0
    steps: int = 0
    accuracy: float | None = None
    changed: float = 0.0
    fault: str = ""


def list_runs(folder: str | Path) -> list[RunInfo]:
    """The runs in *folder*, most recently changed first. A damaged run is a row with its fault."""
    paths = [p.parent for p in Path(folder).glob("*/recipe.toml")]
    return sorted(map(_info, paths), key=lambda r: (-r.changed, r.name))


def _info(path: Path) -> RunInfo:
    state: State = "stopped"
    changed = 0.0
    try:
        changed = max(p.lstat().st_mtime for p in path.iterdir())
        lock = path / "run.lock"
        if owner := lock_owner(lock):
            state = "preparing" if owner.endswith("\npreparing") else "running"
        elif lock.is_file() and lock.stat().st_size > 0:  # a process that ends in order empties it
            state = "crashed"
        folder = RunFolder(path, lock=False)
        recipe, metrics = tomllib.loads(folder.recipe()), folder.metrics()
        accuracies = [float(m["held_out.accuracy"]) for m in metrics if m.get("held_out.accuracy") is not None]
        return RunInfo(
            name=path.name,
            path=path,
            state="finished" if folder.summary() is not None and not owner else state,
            model=str(recipe.get("model", {}).get("name", "")),
            environments=tuple(label(str(e.get("use"))) for e in recipe.get("environments", [])),
            step=metrics[-1]["step"] if metrics else 0,
            steps=int(recipe.get("run", {}).get("steps", 0)),
            accuracy=accuracies[-1] if accuracies else None,
            changed=changed,
        )
    except Exception as e:  # noqa: BLE001 - anybody may have edited the files: what they raise concerns this row alone
        fault = str(e) if isinstance(e, QuintainError) else f"{type(e).__name__}: {e}"
        return RunInfo(name=path.name, path=path, state=state, changed=changed, fault=fault.split("\n")[0])


@click.command(help="List runs with their progress and held-out accuracy.")
@click.option("--folder", default="runs", show_default=True, help="Parent folder of the run folders.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run and line.")
def runs(folder: str, as_json: bool) -> None:
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
