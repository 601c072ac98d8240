"""`quintain runs`: the runs of a folder, or some of them side by side."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal

import click

from quintain.cli import folder_option
from quintain.console import clock_text, printable, program_name
from quintain.errors import QuintainError, RunError, UsageError
from quintain.registry import short_name
from quintain.store import RunFolder, find_run, is_run, lock_owner, take_lock
from quintain.types import decoding

__all__ = ["RunInfo", "list_runs", "run_info", "runs"]

State = Literal["preparing", "running", "finished", "stopped", "crashed"]
LEFT_OUT = ("model", "tokens/s", "environments", "algorithm", "started")
"""Columns of the list that are left out, in this order, until the others fit on the terminal."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A row of ``quintain runs``.

    ``stopped`` is a run that ended in order before its last step, such as after Ctrl-C; ``crashed``
    one whose process was killed. Times are in seconds since 1970; ``fault`` says why a folder
    cannot be read. ``before`` and ``after`` are accuracies on ``split`` at ``temperature`` (0:
    greedy; none: unknown): of the test split for a finished run that measured them, else the first
    and the last held-out evaluation; a run with one evaluation has no ``after``. ``other_decoding``
    has before, after and temperature of the other way of decoding. ``tokens_per_second`` is the
    speed of sampling over all steps. ``settings`` are the keys of the recipe by dotted name.
    """

    name: str
    path: Path
    state: State
    model: str = ""
    algorithm: str = ""
    environments: tuple[str, ...] = ()
    seed: int = 0
    step: int = 0
    steps: int = 0
    before: float | None = None
    after: float | None = None
    split: str = ""
    temperature: float | None = None
    other_decoding: tuple[float | None, float | None, float] | None = None
    accuracy: float | None = None
    started: float = 0.0
    changed: float = 0.0
    samples: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    reward: float | None = None
    fault: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)


def list_runs(folder: str | Path) -> list[RunInfo]:
    """Return the runs in *folder*, most recently changed first. A damaged run is a row with its
    fault.
    """
    paths = [path for path in Path(folder).glob("*") if is_run(path)]
    return sorted(map(run_info, paths), key=lambda r: (-r.changed, r.name))


def run_info(path: Path) -> RunInfo:
    """Return the run in the folder *path*."""
    state: State = "stopped"
    started = changed = 0.0
    try:
        changed = max(p.lstat().st_mtime for p in path.iterdir())
        if (path / "recipe.toml").exists():
            started = (path / "recipe.toml").stat().st_mtime
        lock = path / "run.lock"
        if owner := lock_owner(lock):
            state = "preparing" if owner.endswith("\npreparing") else "running"
        elif lock.is_file() and lock.stat().st_size > 0:  # a process that ends in order empties it
            state = "crashed"
        folder = RunFolder(path, lock=False)
        recipe, metrics = tomllib.loads(folder.recipe()), folder.metrics()
        if processes := folder.processes():
            started = datetime.fromisoformat(str(processes[0]["time"])).timestamp()
        summary = None if owner else folder.summary()
        return RunInfo(
            name=path.name,
            path=path,
            state="finished" if summary is not None else state,
            model=model_label(str(_get(recipe, "model", "name") or "")),
            algorithm=short_name(str(_get(recipe, "algorithm", "use") or "")),
            environments=tuple(
                short_name(str(e.get("use"))) for e in recipe.get("environments", [])
            ),
            seed=int(_get(recipe, "run", "seed") or 0),
            step=metrics[-1]["step"] if metrics else 0,
            steps=int(_get(recipe, "run", "steps") or 0),
            **_held_out(recipe, metrics, summary),
            started=started,
            changed=changed,
            samples=summary.get("samples") if summary else None,
            tokens=summary.get("tokens") if summary else None,
            seconds=_get(summary or {}, "seconds", "total"),
            tokens_per_second=_sampling_speed(metrics),
            reward=next(
                (m["reward.mean"] for m in reversed(metrics) if m.get("reward.mean") is not None),
                None,
            ),
            settings=dict(_flat(recipe)),
        )
    except Exception as e:  # noqa: BLE001 - anybody may have edited the files: what they raise concerns this row alone
        fault = str(e) if isinstance(e, QuintainError) else f"{type(e).__name__}: {e}"
        details: dict[str, Any] = {
            "started": started,
            "changed": changed,
            "fault": fault.split("\n")[0],
        }
        return RunInfo(name=path.name, path=path, state=state, **details)


def _held_out(
    recipe: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the fields about held-out accuracy: of the test split once a run is finished."""
    accuracies = [
        float(m["held_out.accuracy"]) for m in metrics if m.get("held_out.accuracy") is not None
    ]
    before = accuracies[0] if accuracies else None
    after = accuracies[-1] if len(accuracies) > 1 else None
    split = _get(recipe, "evaluation", "split")
    temperature = next(
        (m["held_out.temperature"] for m in metrics if "held_out.temperature" in m), None
    )
    other_decoding = None
    if (
        summary is not None
        and (measured := _get(summary, "held_out", "after", "accuracy")) is not None
    ):
        before, after = _get(summary, "held_out", "before", "accuracy"), float(measured)
        split = _get(recipe, "evaluation", "test", "split")
        temperature = _get(summary, "held_out", "after", "temperature")
        if other := _get(summary, "held_out", "after", "other_decoding"):
            first = _get(summary, "held_out", "before", "other_decoding", "accuracy")
            other_decoding = first, _get(other, "accuracy"), float(_get(other, "temperature"))
    return {
        "before": before,
        "after": after,
        "split": str(split or ""),
        "temperature": temperature,
        "other_decoding": other_decoding,
        "accuracy": accuracies[-1] if accuracies else None,
    }


def _sampling_speed(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return sampled tokens per second of sampling, over all steps."""
    speeds = [
        (m["tokens"], m["tokens_per_second"])
        for m in metrics
        if m.get("tokens") and m.get("tokens_per_second")
    ]
    timed = [(tokens, tokens / speed) for tokens, speed in speeds]
    return (
        sum(tokens for tokens, _ in timed) / sum(seconds for _, seconds in timed) if timed else None
    )


def model_label(name: str) -> str:
    """Return the model *name* as a list shows it: of a checkpoint the name of its run, else the
    last part.
    """
    run, checkpoints, *_ = (*Path(name).parts[-4:-2], "", "")
    return run if checkpoints == "checkpoints" else short_name(name)


def _get(table: Mapping[str, Any], *keys: str) -> Any:
    """Return the value under nested *keys*; ``None`` if one is missing."""
    value: Any = table
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@folder_option
@click.option("--yes", "-y", is_flag=True, help="With rm: remove without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run and line.")
def runs(names: Sequence[str], folder: str, yes: bool, as_json: bool) -> None:
    """List runs with date, state, progress and held-out accuracy before and after; or compare each
    RUN side by side.

    A run is `stopped` if it ended in order before its last step, and `crashed` if its process was
    killed; both continue with `quintain train --resume RUN`. `rm` removes the folder of each RUN,
    with its checkpoints.

    \b
    quintain runs
    quintain runs arithmetic-1 arithmetic-2
    quintain runs rm arithmetic-1 arithmetic-2
    """
    if names[:1] == ("rm",):
        remove([find_run(name, folder) for name in dict.fromkeys(names[1:])], yes=yes)
        return
    if yes:
        raise click.UsageError("--yes is for `quintain runs rm RUN...`; leave it out")
    infos = [run_info(find_run(name, folder)) for name in names] if names else list_runs(folder)
    if as_json:
        for run in infos:
            row = {
                f.name: getattr(run, f.name) for f in fields(run) if names or f.name != "settings"
            }
            click.echo(json.dumps(row, default=str))
        return
    if not infos:
        click.echo(f"no runs in {folder!r}; start one with: {program_name()} train")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:  # a pipe has no width
        console = Console(width=10_000)
    if names:
        titles, rows = ["", *(run.name for run in infos)], list(compared(infos))
    else:
        titles, rows = listed(infos, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(titles):
        table.add_column(printable(title), overflow="fold", no_wrap=bool(names) and i == 0)
    for cells in rows:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)


def remove(paths: Sequence[Path], *, yes: bool) -> None:
    """Remove the run folders *paths*, after a question unless *yes*, and say what was freed.

    Raises:
        UsageError: there is nothing to remove, or a folder that no run made.
        RunError: a process writes to one of them; all are kept.
    """
    if not paths:
        raise UsageError("name the runs to remove: quintain runs rm RUN...")
    for path in paths:
        if (
            not (path / "run.lock").is_file()
            or path.is_symlink()
            or Path.cwd().is_relative_to(path.resolve())
        ):
            raise UsageError(
                f"{path} is no folder that a run has made and you are outside of; remove it by hand"
            )
    with ExitStack() as locks:
        for path in paths:
            if (owner := lock_owner(path / "run.lock")) or (
                lock := take_lock(path / "run.lock")
            ) is None:
                raise RunError(
                    f"run {path.name!r} is being written by {owner or 'another process'}; stop it "
                    f"first"
                )
            locks.callback(_emptied, lock)
        sizes = [
            sum(p.lstat().st_size for p in path.rglob("*") if not p.is_dir()) for path in paths
        ]
        for path, size in zip(paths, sizes, strict=True):
            click.echo(f"{path}: {size / 1e6:,.1f} MB, {run_info(path).step} steps")
        if not yes:
            click.confirm(f"remove {len(paths)} runs, {sum(sizes) / 1e6:,.1f} MB?", abort=True)
        for path in paths:
            shutil.rmtree(path)
    click.echo(f"removed {len(paths)} runs, {sum(sizes) / 1e6:,.1f} MB")


def _emptied(lock: IO[str]) -> None:
    """Release *lock* as a process does that ends in order: a run that is kept did not crash."""
    lock.truncate(0)
    lock.close()


def listed(infos: Sequence[RunInfo], width: int) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return titles and rows of the list for a terminal of *width* columns."""
    titles = [
        "run",
        "state",
        "started",
        "environments",
        "model",
        "algorithm",
        "step",
        "tokens/s",
        "held-out accuracy",
    ]
    rows = [
        (
            run.name,
            f"{run.state}: {run.fault}" if run.fault else run.state,
            _date(run.started),
            ", ".join(run.environments),
            run.model,
            run.algorithm,
            f"{run.step}/{run.steps}",
            _speed(run),
            change(run),
        )
        for run in infos
    ]
    widths = [max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True)]
    kept = list(range(len(titles)))
    for title in LEFT_OUT:
        if sum(widths[i] for i in kept) - 2 > width:
            kept.remove(titles.index(title))
    return [titles[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]


def change(run: RunInfo) -> str:
    """Return accuracy before and after, with split and way of decoding; empty if there is none."""
    if run.before is None and run.after is None:
        return ""
    values = " -> ".join(f"{value:.1%}" for value in (run.before, run.after) if value is not None)
    of = f"{run.split} (start)" if run.after is None else run.split
    return " ".join(part for part in (values, of, short_decoding(run.temperature)) if part)


def change_of_other_decoding(run: RunInfo) -> str:
    """Return what `change` does, in the other way of decoding."""
    if run.other_decoding is None:
        return ""
    *values, temperature = run.other_decoding
    shown = " -> ".join(f"{value:.1%}" for value in values if value is not None)
    return f"{shown} {run.split} {short_decoding(temperature)}"


def short_decoding(temperature: float | None) -> str:
    """Return ``greedy`` or ``T 0.7``, as a column has room for it; empty if it is unknown."""
    return "" if temperature is None else decoding(temperature).removeprefix("sampled at ")


def compared(infos: Sequence[RunInfo]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the comparison: results, costs, and the keys of the recipes that differ."""
    for title, cell in (
        ("state", lambda r: f"{r.state}: {r.fault}" if r.fault else r.state),
        ("started", lambda r: _date(r.started)),
        ("held-out accuracy", change),
        *([("", change_of_other_decoding)] if any(run.other_decoding for run in infos) else []),
        ("last reward", lambda r: "" if r.reward is None else f"{r.reward:.3f}"),
        ("step", lambda r: f"{r.step}/{r.steps}"),
        ("samples", lambda r: "" if r.samples is None else f"{r.samples:,}"),
        ("tokens", lambda r: "" if r.tokens is None else f"{r.tokens:,}"),
        ("tokens/s", _speed),
        ("time", lambda r: "" if r.seconds is None else clock_text(r.seconds)),
        ("environments", lambda r: ", ".join(r.environments)),
        ("model", lambda r: r.model),
        ("algorithm", lambda r: r.algorithm),
    ):
        yield title, *map(cell, infos)
    tables = [run.settings for run in infos]
    for key in sorted({key for table in tables for key in table} - {"run.name"}):
        values = [table.get(key) for table in tables]
        if any(value != values[0] for value in values):
            yield (
                key,
                *(
                    "" if value is None else value if isinstance(value, str) else json.dumps(value)
                    for value in values
                ),
            )


def _speed(run: RunInfo) -> str:
    return "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _flat({str(i): row for i, row in enumerate(value)}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else ""
