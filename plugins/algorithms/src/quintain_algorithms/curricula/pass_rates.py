"""Pass rates of tasks: counted from rollouts, saved as JSON lines, read by the difficulty filter
and by orders.

A line is ``{"task": id, "right": n, "tried": n, "level": number or null, "environment": name}``;
lines of one task add up. A line of `quintain check --audit` has ``sound`` instead: whether the task
may be drawn at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from quintain import Task
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import NoTasksError, RunError, UsageError
from quintain.interfaces import TaskReader
from quintain.store import read_table
from quintain.types import reaches

from .pool import POOL

RATE = '{"task": id, "right": n, "tried": n}, as `quintain pass-rates ROLLOUTS --out` writes'
VALID = ("finished", "truncated", "policy_fault", "policy_timeout")
"""Terminations of rollouts that count: the others failed for reasons other than the policy."""


@dataclass(frozen=True, kw_only=True)
class PassRate:
    """Of *tried* valid rollouts of the task with the id *task*, *right* succeeded; none was tried
    where an audit alone knows the task.
    """

    task: str
    right: int
    tried: int
    level: float | None = None
    environment: str = ""

    @property
    def rate(self) -> float:
        """The share, 0 to 1, where something was tried."""
        return self.right / self.tried


def read_pass_rates(path: str | Path) -> dict[str, PassRate]:
    """Return the rates of the file *path* by task; those at which an audit in it found a fault are
    left out. One without a known solution stays.

    Raises:
        UsageError: it cannot be read, is no such file, or has no task.
    """
    rates: dict[str, PassRate] = {}
    sound: dict[str, bool] = {}
    with DataFaults(path) as faults:
        for where, line in text_lines(Path(path), faults):
            with faults.row(where):
                row = json_object(line, RATE)
                if "sound" in row and type(row.get("task")) is str:
                    rate = PassRate(task=row["task"], right=0, tried=0, level=row.get("level"))
                    sound[rate.task] = row["sound"] is not False
                else:
                    rate = _rate(row)
                rates[rate.task] = _sum(rates.get(rate.task), rate)
    rates = {task: rate for task, rate in rates.items() if sound.get(task, True)}
    if sound and not rates:
        raise UsageError(f"{path} finds a fault in each of its tasks")
    if not rates:
        raise UsageError(
            f"{path} has no pass rates; write them with `quintain pass-rates ROLLOUTS --out {path}`"
        )
    return rates


def _rate(row: Mapping[str, Any]) -> PassRate:
    try:
        rate = PassRate(**row)
        if type(rate.task) is not str or not 0 <= rate.right <= rate.tried or not rate.tried:
            raise ValueError("right and tried do not fit")
    except (TypeError, ValueError) as e:
        raise UsageError(f"no pass rate ({e}); expected {RATE}") from e
    return rate


def count_rollouts(paths: Iterable[str | Path]) -> dict[str, PassRate]:
    """Return the rates of the rollouts in *paths* by task.

    Args:
        paths: files that ``quintain eval --out`` wrote, those of a run's folder ``rollouts``, or
            such folders.

    Raises:
        UsageError: one cannot be read, or none has a valid rollout.
    """
    rates: dict[str, PassRate] = {}
    for path in map(Path, paths):
        files = sorted(
            (path / "rollouts" if (path / "rollouts").is_dir() else path).glob("*.parquet")
        )
        for file in files if path.is_dir() else [path]:
            for rate in _of_parquet(file) if file.suffix == ".parquet" else _of_lines(file):
                rates[rate.task] = _sum(rates.get(rate.task), rate)
    if not rates:
        raise UsageError(
            f"no valid rollout in {', '.join(map(str, paths))}; name files of `quintain eval --out "
            f"FILE`"
        )
    return rates


def _of_parquet(file: Path) -> Iterator[PassRate]:
    columns = ["task_id", "level", "environment", "outcome", "termination"]
    try:
        rows = read_table(file, columns).to_pylist()
    except RunError as e:
        raise UsageError(f"{file} has no rollouts: {e}") from e
    for row in rows:
        if row["termination"] in VALID and row["outcome"] is not None:
            yield _one(row["task_id"], row["outcome"], row["level"], row["environment"])


def _of_lines(file: Path) -> Iterator[PassRate]:
    with DataFaults(file) as faults:
        for where, line in text_lines(file, faults):
            rate = None
            with faults.row(where):
                rate = _of_rollout(json_object(line, "a rollout of `quintain eval --out`"))
            if rate is not None:
                yield rate


def _of_rollout(row: Mapping[str, Any]) -> PassRate | None:
    """Return the rate of one rollout; ``None`` if it failed."""
    try:
        kind, outcome, task = row["termination"]["kind"], row["outcome"], row["task"]
        if kind not in VALID or outcome is None:
            return None
        return _one(task["id"], outcome["value"], task.get("level"), row.get("environment") or "")
    except (KeyError, TypeError, ValueError) as e:
        raise UsageError(
            f"no rollout ({type(e).__name__}: {e}); name a file of `quintain eval --out`"
        ) from e


def _one(task: str, outcome: float, level: float | None, environment: str) -> PassRate:
    return PassRate(
        task=task, right=int(reaches(outcome)), tried=1, level=level, environment=environment
    )


def _sum(a: PassRate | None, b: PassRate) -> PassRate:
    if a is None:
        return b
    return PassRate(
        task=a.task,
        right=a.right + b.right,
        tried=a.tried + b.tried,
        level=b.level,
        environment=b.environment,
    )


def write_pass_rates(rates: Iterable[PassRate]) -> bytes:
    """Return the content of a file of *rates*."""
    return "".join(json.dumps(asdict(rate)) + "\n" for rate in rates).encode()


def tasks_with(ids: Iterable[str], read: TaskReader, name: str) -> list[Task]:
    """Return the tasks of a split with these *ids*, in the split's order; `POOL` tasks are looked
    at, at most.

    Raises:
        NoTasksError: none is among them.
    """
    left = set(ids)
    tasks: list[Task] = []
    for task in islice(read(), POOL):
        if task.id in left:
            tasks.append(task)
            left.discard(task.id)
            if not left:
                break
    if not tasks:
        raise NoTasksError(
            f"no task of {name!r} is in the file of pass rates; measure the split of training, "
            f"with the same arguments of the environment: quintain eval {name} --split train "
            "--samples 8 --out rollouts.parquet"
        )
    return tasks


def histogram(rates: Sequence[PassRate], bins: int = 5) -> Mapping[str, int]:
    """Count tasks by pass rate: never, *bins* - 2 equal ranges between, always."""
    between = bins - 2
    edges = [f"{100 * i // between}-{100 * (i + 1) // between} %" for i in range(between)]
    counts: dict[str, Any] = dict.fromkeys(["never", *edges, "always"], 0)
    for rate in rates:
        inside = edges[min(between - 1, rate.right * between // rate.tried)]
        counts["never" if not rate.right else "always" if rate.right == rate.tried else inside] += 1
    return counts
