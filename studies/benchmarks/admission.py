"""Three rules of admission under ``stale = "drop"``, by how the waits of episodes vary: a count of
groups, a count of episodes, and that of `quintain_scale.schedules`, in which an overtaken group counts
with its running episodes.

A model of the admission alone, with an engine and a learner that take no time. `schedules` runs the
product.

    python -m studies.benchmarks.admission [--quick]
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from .common import arguments, table, write

BATCH, STEPS, UPDATE = 8, 100, 0.01
WAITS: dict[str, Callable[[Random], float]] = {
    "1, one in ten 10": lambda draw: 10.0 if draw.random() < 0.1 else 1.0,
    "all equal": lambda draw: 1.9,
    "1 to 2": lambda draw: 1 + draw.random(),
    "1, four in ten 3": lambda draw: 3.0 if draw.random() < 0.4 else 1.0,
    "exponential": lambda draw: draw.expovariate(1),
    "log-normal": lambda draw: draw.lognormvariate(0, 1),
}
RULES = {
    "groups": None,
    "episodes": 0,
    "overtaken by half a batch": BATCH // 2,
    "overtaken by a batch": BATCH,
    "overtaken by two": 2 * BATCH,
}
"""After how many later complete groups one counts with its running episodes; never, and always."""


@dataclass
class Group:
    """A running or complete group."""

    number: int
    started: int
    running: int
    overtaken: int = 0


@dataclass
class Admission:
    """A run of *rule*; `play` returns its figures."""

    rule: int | None
    waits: Callable[[Random], float]
    staleness: int
    size: int
    draw: Random
    now: float = 0.0
    step: int = 1
    taken: int = 0
    admitted: int = 0
    left_out: int = 0
    running: dict[int, Group] = field(default_factory=dict)
    complete: list[Group] = field(default_factory=list)
    events: list[tuple[float, int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def play(self, steps: int) -> dict[str, float]:
        """Return seconds of a step, and the share of groups left out, of the last three quarters."""
        self.admit()
        while self.step <= steps:
            if not self.taken:
                self.leave_out()
                self.admit()
                if len(self.complete) >= BATCH:
                    self.complete = sorted(self.complete, key=lambda g: g.number)[BATCH:]
                    self.taken = BATCH
                    heapq.heappush(self.events, (self.now + UPDATE, -1))
                    self.times.append(self.now)
                    self.admit()
                    continue
            self.now, number = heapq.heappop(self.events)
            if number < 0:
                self.taken, self.step = 0, self.step + 1
            elif number in self.running:
                self.end_episode(self.running[number])
            self.admit()
        late = self.times[len(self.times) // 4 :]
        seconds = (late[-1] - late[0]) / (len(late) - 1)
        return {"seconds": seconds, "left out": self.left_out / self.admitted}

    def end_episode(self, group: Group) -> None:
        group.running -= 1
        if not group.running:
            self.complete.append(self.running.pop(group.number))
            for other in self.running.values():
                other.overtaken += other.number < group.number

    def leave_out(self) -> None:
        oldest = self.step - self.staleness
        fresh = [g for g in self.complete if g.started >= oldest]
        late = [n for n, g in self.running.items() if g.started < oldest]
        self.left_out += len(self.complete) - len(fresh) + len(late)
        self.complete = fresh
        for number in late:
            del self.running[number]

    def admit(self) -> None:
        places = (self.staleness + 1) * BATCH
        while True:
            ready = self.taken + len(self.complete)
            slow = [
                g
                for g in self.running.values()
                if self.rule is not None and g.overtaken >= self.rule
            ]
            counted = ready + len(self.running) - len(slow)
            episodes = ready * self.size + sum(g.running for g in self.running.values())
            if counted >= places and self.rule != 0:
                return
            if (slow or self.rule == 0) and episodes + self.size > places * self.size:
                return
            group = Group(self.admitted, self.step + bool(self.taken), self.size)
            self.running[group.number] = group
            for _ in range(self.size):
                heapq.heappush(self.events, (self.now + self.waits(self.draw), group.number))
            self.admitted += 1


def main() -> None:
    args = arguments(__doc__).parse_args()
    steps = 20 if args.quick else STEPS
    figures, rows = {}, []
    for staleness in (1, 4):
        for size in (4, 16):
            for name, waits in WAITS.items():
                row = [str(staleness), str(size), name]
                for rule, after in RULES.items():
                    played = Admission(after, waits, staleness, size, Random(0)).play(steps)
                    figures[f"{staleness}, {size}, {name}, {rule}"] = played
                    row.append(f"{played['seconds']:.2f}, {100 * played['left out']:.0f} %")
                rows.append(row)
    print(table(["staleness", "group", "waits", *RULES], rows))
    write("admission", figures, quick=args.quick, about={"batch": BATCH, "steps": steps})


if __name__ == "__main__":
    main()
