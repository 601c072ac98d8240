"""What an audit found of a task folder: a line of JSON in a file that `Harbor.audit` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain_authoring import RecordFile

TEXT = 600
"""Characters of a reason."""
NEAR = 0.8
"""Share of a limit from which on it is named."""
SHORTCUTS = {
    "forgery": ("forged", "the reward can be forged"),
    "planted": ("planted", "the tests can be edited"),
    "echo": ("echo", "the instruction is an answer"),
    "constant": ("constant", "a constant is an answer"),
    "other": ("other", "the solution of another task is right"),
}
"""Ways to a reward without work: the field of the record with what each got, and the defect if that
is 1.
"""


@dataclass(kw_only=True)
class AuditRecord:
    """What the audit found of one task.

    Attributes:
        task: its name; *folder* its place, *digest* of its contents and of what it was tried with.
        status: ``played``, ``unsupported``, ``invalid`` (a file), ``build`` (its image), or
            ``failed`` (the engine, a health check).
        tried: what was done, each once but for the solution.
        skipped: what does not apply to this task, with the reason.
        oracle: rewards of the reference solution, one for each run; ``None`` for a run without a
            reward.
        nop: the reward for doing nothing.
        forged: the reward for a program that writes the reward file.
        planted: the reward for tests and their settings that were changed before the verifier ran.
        echo: the reward for the instruction as the answer.
        constant: the reward for ``1`` as the answer.
        other: the reward for the solution of *other_task*.
        offline: the reward of the solution without a network, where the task has one.
        online: the reward of the solution with a network, where the task declares none and the
            solution fails.
        defects: kinds, each with what was seen.
        sound: whether the solution has 1 in every run, and nothing 0; ``None`` without a solution
            where nothing has 0.
        level: difficulty that the task states, as a number.
        seconds: of the build, and of the longest run of the solution and of the verifier.
        limits: seconds and memory (MiB) that the task sets for these; none where it sets none.
        memory_mb: most memory of a run of the solution.
    """

    task: str
    folder: str
    digest: str
    status: str = "played"
    reason: str = ""
    tried: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    oracle: list[float | None] = field(default_factory=list)
    nop: float | None = None
    forged: float | None = None
    planted: float | None = None
    echo: float | None = None
    constant: float | None = None
    other: float | None = None
    other_task: str = ""
    offline: float | None = None
    online: float | None = None
    defects: dict[str, str] = field(default_factory=dict)
    sound: bool | None = False
    level: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    memory_mb: float = 0.0
    steps: int = 0

    def found(self, kind: str, seen: str) -> None:
        """Note a defect; the first of a kind counts."""
        self.defects.setdefault(kind, seen[:TEXT])

    def judge(self) -> None:
        """Set `sound`, and note the defects that follow from the rewards and the limits."""
        if self.status != "played":
            self.sound = False
            return
        solved = [value for value in self.oracle if value is not None]
        right = bool(solved) and len(solved) == len(self.oracle) and min(solved) >= 1
        if self.nop is not None and self.nop != 0:
            self.found("nothing is rewarded", f"the reward for doing nothing is {self.nop:g}")
        if not self.oracle:
            self.found("no solution", "there is no solution/solve.sh")
        elif any(value < 1 for value in solved):
            self.found("the solution fails", f"rewards of the solution: {self.oracle}")
        if len(set(self.oracle)) > 1:
            self.found("not repeatable", f"rewards of the solution: {self.oracle}")
        for way, (name, kind) in SHORTCUTS.items():
            got = getattr(self, name)
            if got is not None and got >= 1 and (self.nop or 0) < 1:
                by = self.other_task if way == "other" else way
                self.found(kind, f"{by} got {got:g}")
        if self.offline is not None and self.offline < 1 and right:
            self.found("needs a network", f"the solution has {self.offline:g} without one")
        if self.online is not None and self.online >= 1 and not right:
            self.found(
                "needs a network that it does not declare",
                f"the solution has {self.online:g} with one, and {self.oracle} as declared",
            )
        # Files that the kernel keeps count as memory, so `Attempts` notes a lack of it alone.
        for what in self.limits.keys() - {"memory"}:
            took, limit = self.seconds.get(what, 0.0), self.limits[what]
            if took >= NEAR * limit:
                self.found("close to a limit", f"the {what} took {took:g} of {limit:g} s")
        self.sound = right if self.oracle else None
        if self.nop != 0:
            self.sound = False


def record_file(path: Path) -> RecordFile[AuditRecord]:
    """Return the file of an audit at *path*."""
    return RecordFile(path, AuditRecord, "quintain tasks audit")


def summary(records: Iterable[AuditRecord]) -> dict[str, Any]:
    """Return counts: of states, of tasks with a solution that has 1, of those in which nothing has
    0, of sound ones, and of each kind of defect.
    """
    rows = list(records)
    played = [row for row in rows if row.status == "played"]
    solved = [row for row in played if row.oracle]
    return {
        "tasks": len(rows),
        "status": dict(Counter(row.status for row in rows).most_common()),
        "with_solution": len(solved),
        "oracle_1": sum(all(v is not None and v >= 1 for v in row.oracle) for row in solved),
        "nop_0": sum(row.nop == 0 for row in played),
        "sound": sum(row.sound is True for row in rows),
        "defects": dict(Counter(kind for row in rows for kind in row.defects).most_common()),
    }
