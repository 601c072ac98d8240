"""The tasks of one environment, in the order in which a run tries them: by level, by failures,
without solved ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Literal

from quintain import Task
from quintain.errors import RunError, UsageError
from quintain.interfaces import TaskReader
from quintain.tasks import Shuffled, TaskStream
from quintain.types import derived_seed, reaches

Order = Literal["shuffled", "easy_to_hard", "hard_first"]

POOL = 16_384
"""Tasks that an order by level or by failures looks at together, at most."""


class TaskPool(TaskStream):
    """Endless tasks of one split: reshuffled for every pass; then, window by window, in another
    order if asked.

    A window is the next *size* tasks of a pass (at its end fewer). ``easy_to_hard`` goes through
    each window once, from easy to hard, tasks of equal level as shuffled. ``hard_first`` draws as
    often as the window has tasks, each time in proportion to 1 - success rate so far (before the
    first attempt that of *rates*, else 0); what was drawn and is not yet recorded is left out as
    long as there is another. ``shuffled`` takes tasks as they come.

    Args:
        read: starts a pass over the split.
        seed: of this pool alone.
        size: of a window; 1 for ``shuffled``.
        drop_solved: success rate over the run from which on a task is not drawn again. Where all
            tasks in reach got there they come back, and their rates are reset.
        rates: successes and attempts by task before the run; orders start with them instead of
            levels and of no record.
        name: what errors call the environment.

    Attributes:
        read, rates: as given; others count from the next `restart`.
        dropped: ids that are not drawn.
        notices: messages for the user; whoever shows them empties the list.
    """

    def __init__(
        self,
        read: TaskReader,
        *,
        seed: int,
        order: Order = "shuffled",
        size: int = 1,
        drop_solved: float | None = None,
        rates: Mapping[str, tuple[int, int]] | None = None,
        name: str = "",
    ) -> None:
        self._order, self._name = order, name
        self.rates = {} if rates is None else rates
        self.size, self._drop_solved = size, drop_solved
        self.notices: list[str] = []
        super().__init__(read, seed)

    def restart(self) -> None:
        """Go back to the first task, with nothing recorded."""
        super().restart()
        self._history: dict[str, tuple[int, int]] = {}
        self.dropped: set[str] = set()
        self._ahead: tuple[int, Task] | None = None
        self._window: list[Task] = []
        self._start = 0  # tasks of the stream before the window
        self._taken = 0  # draws from the window
        self._pass = 0  # of the window
        self._fruitful = 0  # the pass that gave the last task
        self._skipped = 0  # dropped tasks passed over since then
        self._flying: set[str] = set()

    def draw(self) -> Task:
        """Return the next task to try.

        Raises:
            NoTasksError: the split has none.
            UsageError: tasks are to come by level and one has none.
        """
        while True:
            if self._taken >= len(self._window):
                self._load()
            task = self._hard_first() if self._order == "hard_first" else self._window[self._taken]
            self._taken = self._taken + 1 if task is not None else len(self._window)
            if task is not None and task.id not in self.dropped:
                self._fruitful, self._skipped = self._pass, 0
                self._flying.add(task.id)
                return task
            self._skipped += 1 if task is not None else len(self._window)

    @property
    def adaptive(self) -> bool:
        """Whether what is drawn depends on what is recorded."""
        return self._drop_solved is not None or self._order == "hard_first"

    def record(self, task: str, right: int, tried: int) -> None:
        """Record that of *tried* more attempts at the task with that id *right* succeeded."""
        self._flying.discard(task)
        if not (self.adaptive and tried):
            return
        before = self._history.get(task, (0, 0))
        now = self._history[task] = (before[0] + right, before[1] + tried)
        if self._drop_solved is not None and reaches(_rate(now), self._drop_solved):
            self.dropped.add(task)
        else:
            self.dropped.discard(task)

    def state(self) -> dict[str, Any]:
        """Return plain data; where the pool stands."""
        return {
            "start": self._start,
            "taken": self._taken,
            "held": len(self._window),
            "fruitful": self._fruitful,
            "skipped": self._skipped,
            "history": {task: list(counts) for task, counts in self._history.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.restart()
        for _ in range(state["start"]):
            self._next()
        if state["held"]:
            self._fill()
        self._start, self._taken = state["start"], state["taken"]
        self._fruitful, self._skipped = state["fruitful"], state["skipped"]
        for task, (right, tried) in state["history"].items():
            self.record(task, right, tried)

    def _load(self) -> None:
        """Load the next window; where a whole pass, or very many tasks in a row, were dropped, all
        come back.
        """
        self._start += len(self._window)
        self._fill()
        if self.dropped and (self._pass > self._fruitful + 1 or self._skipped >= POOL):
            self.notices.append(
                f"all tasks of {self._name!r} in reach are dropped: they come back, and their "
                f"success rates are reset"
            )
            self.dropped.clear()
            self._history.clear()
            self._fruitful, self._skipped = self._pass, 0

    def _fill(self) -> None:
        self._pass, first = self._next()
        self._window, self._taken = [first], 0
        while len(self._window) < self.size:
            number, task = self._next()
            if number != self._pass:
                self._ahead = number, task
                break
            self._window.append(task)
        if self._order == "easy_to_hard":
            self._window.sort(key=self._difficulty)

    def _difficulty(self, task: Task) -> float:
        return -_rate(self.rates[task.id]) if task.id in self.rates else level_of(task, self._name)

    def _next(self) -> tuple[int, Task]:
        if self._ahead is not None:
            pick, self._ahead = self._ahead, None
            return pick
        return self.next()

    def _hard_first(self) -> Task | None:
        """Pick one of the window; ``None`` where all of it is dropped."""
        left = [t for t in self._window if t.id not in self.dropped]
        left = [t for t in left if t.id not in self._flying] or left
        if not left:
            return None
        weights = [
            1.0 - _rate(self._history.get(t.id) or self.rates.get(t.id, (0, 1))) for t in left
        ]
        if not any(weights):
            weights = [1.0] * len(left)
        rng = Random(derived_seed(self.seed, "draw", self._start + self._taken))
        return rng.choices(left, weights)[0]


def level_of(task: Task, name: str) -> float:
    """Return the level of *task*.

    Raises:
        UsageError: it has none.
    """
    if task.level is None:
        raise UsageError(
            f"plan.order is 'easy_to_hard', but task {task.id!r} of environment {name!r} has no "
            "level; give its tasks a `level`, or take order = 'shuffled' or 'hard_first'"
        )
    return task.level


def _rate(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def first_pass(read: TaskReader, seed: int, count: int) -> list[Task]:
    """Return the first *count* different tasks of the first pass, in its order; all of them where
    there are fewer.

    Of an endless split that repeats itself no more than `POOL` are looked at.
    """
    by_id: dict[str, Task] = {}
    for looked, (number, task) in enumerate(Shuffled(read, seed)):
        if number or len(by_id) >= count or looked >= max(POOL, count):
            break
        by_id.setdefault(task.id, task)
    return list(by_id.values())


def chosen_of(tasks: list[Task], ids: list[str], name: str) -> list[Task]:
    """Return those of *tasks* that *ids* name.

    Raises:
        RunError: one is not among them.
    """
    by_id = {task.id: task for task in tasks}
    missing = [i for i in ids if i not in by_id]
    if missing:
        raise RunError(
            f"{len(missing)} of the {len(ids)} tasks of {name!r} that the difficulty filter kept "
            f"are missing, {missing[0]!r} for one; restore the data the run began with, or start a "
            "new run from its model"
        )
    return [by_id[i] for i in ids]
