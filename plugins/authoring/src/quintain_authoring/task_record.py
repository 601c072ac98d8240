"""What an audit found of one task of an environment: a line of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from quintain.types import reaches

from .record_file import RecordFile

LITTLE = 0.05
"""Reward from which on a reply without work is worth naming: some scorers pay 0.01 for any text."""
FREE = 0.9
"""Mean reward of one reply to all tasks from which on the reward is free."""
SHOWN = 24
"""Characters of a reply in a table."""


@dataclass(kw_only=True)
class TaskRecord:
    """The rewards of one task without a model, and what is wrong with it.

    Attributes:
        task: its id; *environment* its name, *group* what the summary counts it under.
        digest: of the task, the environment's arguments, and what was tried.
        level: the difficulty that the task states.
        sound: whether the solution has the full reward each time, and an empty reply less than
            `LITTLE`; ``None`` without a solution where the second holds.
        oracle: rewards of the solution, one for each run; ``None`` for a run that failed.
        nop: the reward for an empty reply.
        echo: the reward for the prompt as the reply.
        other: the reward for what solves another task in another way.
        constants: the reward for each of some replies that do not look at the task.
        controls: rewards of the environment's further controls.
        defects: kinds, each with what was seen.
        seconds: of the longest episode.
        memory_mib: the most that the process of the audit held during an episode, beyond what it held
            before, in MiB; that of all tasks that are played at the same time. 0 where the system
            does not say.
    """

    task: str
    environment: str
    digest: str
    group: str = ""
    level: float | None = None
    sound: bool | None = False
    oracle: list[float | None] = field(default_factory=list)
    nop: float | None = None
    echo: float | None = None
    other: float | None = None
    constants: dict[str, float | None] = field(default_factory=dict)
    controls: dict[str, float | None] = field(default_factory=dict)
    defects: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    memory_mib: float = 0.0

    def found(self, kind: str, seen: str) -> None:
        """Note a defect; the first of a kind counts."""
        self.defects.setdefault(kind, " ".join(seen.split())[:300])

    def judge(self, marks: Mapping[str, str]) -> None:
        """Set `sound`, and note the defects that follow from the rewards.

        Args:
            marks: of the controls: ``"max"``, ``"min"`` or nothing.
        """
        solved = bool(self.oracle) and all(v is not None and reaches(v) for v in self.oracle)
        if self.oracle and not solved:
            self.found("the solution fails", f"rewards of the solution: {self.oracle}")
        if (self.nop or 0.0) >= LITTLE:
            self.found("nothing is rewarded", f"an empty reply has {self.nop or 0:g}")
        for name, value in self.controls.items():
            if value is None:
                continue
            if marks[name] == "max" and not reaches(value):
                self.found(f"the control {name} fails", f"it has {value:g}; expected 1")
            elif marks[name] == "min" and value >= max(self.nop or 0.0, 0.0) + LITTLE:
                self.found(f"the control {name} is rewarded", f"it has {value:g}")
        if self.echo is not None and reaches(self.echo):
            self.found("the prompt is an answer", f"it has {self.echo:g}")
        if self.other is not None and reaches(self.other):
            self.found("the answer of another task is right", f"it has {self.other:g}")
        self.sound = solved if self.oracle else None
        failed = {"an episode fails", "an episode does not end"} & self.defects.keys()
        if self.nop is None or self.nop >= LITTLE or failed:
            self.sound = False


def record_file(path: Path) -> RecordFile[TaskRecord]:
    """Return the file of an audit at *path*."""
    return RecordFile(path, TaskRecord, "quintain check")


def summary(records: Iterable[TaskRecord]) -> dict[str, dict[str, Any]]:
    """Return what was found, by group: counts of tasks, the best reply to all of them, and defects."""
    groups: dict[str, list[TaskRecord]] = {}
    for record in records:
        groups.setdefault(record.group or record.environment, []).append(record)
    return {name: _of_group(rows) for name, rows in sorted(groups.items())}


def _of_group(rows: Sequence[TaskRecord]) -> dict[str, Any]:
    replies = dict.fromkeys(reply for row in rows for reply in row.constants)
    means = {r: fmean(row.constants.get(r) or 0.0 for row in rows) for r in replies}
    best = max(means, key=lambda reply: means[reply], default="")
    solved = [row for row in rows if row.oracle]
    defects = Counter(kind for row in rows for kind in row.defects)
    if len(rows) > 1 and means and means[best] >= FREE:
        defects["one reply is right everywhere"] = sum(
            reaches(row.constants.get(best) or 0.0) for row in rows
        )
    return {
        "tasks": len(rows),
        "with_solution": len(solved),
        "oracle_1": sum(all(v is not None and reaches(v) for v in row.oracle) for row in solved),
        "nop_0": sum(row.nop is not None and row.nop < LITTLE for row in rows),
        "sound": sum(row.sound is True for row in rows),
        "constant": round(means[best], 3) if means else None,
        "constant_reply": best,
        "echo": _mean(row.echo for row in rows),
        "other": _mean(row.other for row in rows),
        "seconds": max(row.seconds for row in rows),
        "memory_mib": max(row.memory_mib for row in rows),
        "defects": dict(defects.most_common()),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None


def table(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a summary as a table of Markdown."""
    lines = [
        "| tasks of | tasks | solution 1 | nothing 0 | best constant | prompt | another's answer "
        "| sound | found |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in groups.items():
        constant = "none" if row["constant"] is None else f"{row['constant']:g}"
        if row["constant"]:
            shown = " ".join(row["constant_reply"].split())[:SHOWN].replace("|", "\\|")
            constant += f" (`{shown}`)"
        echo, other = ("none" if row[k] is None else f"{row[k]:g}" for k in ("echo", "other"))
        found = ", ".join(f"{kind} ({count})" for kind, count in row["defects"].items())
        lines.append(
            f"| {name} | {row['tasks']} | {row['oracle_1']} of {row['with_solution']} "
            f"| {row['nop_0']} | {constant} | {echo} | {other} | {row['sound']} | {found} |"
        )
    return "\n".join(lines) + "\n"
