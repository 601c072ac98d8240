"""Which tasks a step tries.

Everything here is a function of (environments, weights, seed, number of tasks picked so far). So the state is one
number and a fingerprint, and going on from a checkpoint repeats the picking, without running anything, up to there.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import Any

from .environment import Environment
from .errors import NoTasksError, PluginError, QuintainError, RunError
from .session import derived_seed
from .task import Task

WINDOW = 4096
"""Tasks drawn among at a time. A split of no more is shuffled whole, a longer or endless one as it streams past."""
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A task to try.

    Attributes:
        environment: position in the curriculum's list.
        index: how many tasks the run picked before.
        visit: how often the run picked this task (by id) before. It goes into the seed of a rollout, so that a second
            visit to a task draws other samples.
    """

    environment: int
    task: Task
    index: int
    visit: int


class Curriculum:
    """Mixes the train splits of several environments by weight.

    Each split is shuffled by the seed, and shuffled anew for every pass over it. The mix follows the weights evenly:
    after n picks each environment is within a few picks of its share.

    Args:
        environments: where tasks come from.
        weights: share of each; equal by default. They need not add up to 1.
        names: what errors call them.
        seed: of the run.
    """

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        *,
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        split: str = "train",
    ) -> None:
        self._environments = tuple(environments)
        self._names = tuple(names or (type(e).__name__ for e in environments))
        self._bounds = list(accumulate(weights or [1.0] * len(self._environments)))
        self._seed, self._split = seed, split
        self._begin()

    def _begin(self) -> None:
        self._streams = [
            _shuffled(self._reader(i), derived_seed(self._seed, "curriculum", i))
            for i in range(len(self._environments))
        ]
        self._offset = derived_seed(self._seed, "mix")
        self._visits: Counter[str] = Counter()
        self._drawn = 0
        self._digest = hashlib.sha256()
        self._last: list[Pick] = []
        self._returned: deque[Pick] = deque()
        self._before = self._state(0)

    def pick(self, count: int) -> list[Pick]:
        """The next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
        """
        self._before = self.state()
        self._last = [self._returned.popleft() if self._returned else self._next() for _ in range(count)]
        return list(self._last)

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return self._state(self._drawn - len(self._returned))

    def _state(self, picked: int) -> dict[str, Any]:
        return {"picked": picked, "fingerprint": self._digest.hexdigest()[:16] if not self._returned else ""}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was taken: at once before the last `pick`, else by picking again from the start.

        Raises:
            RunError: the environments now yield other tasks than they did.
        """
        if state == self._before:
            self._returned.extendleft(reversed(self._last))
            self._last = []
            return
        self._begin()
        for _ in range(state["picked"]):
            self._next()
        if state["fingerprint"] not in ("", self.state()["fingerprint"]):
            raise RunError(
                f"the environments {', '.join(self._names)} do not yield the tasks of the checkpoint any more, so the "
                "run cannot go on as it was; restore the data it began with, or start a new run from its model"
            )
        self._before = self.state()

    def _next(self) -> Pick:
        at = self._which(self._drawn)
        task = next(self._streams[at])
        pick = Pick(environment=at, task=task, index=self._drawn, visit=self._visits[task.id])
        self._visits[task.id] += 1
        self._drawn += 1
        self._digest.update(f"{at}\x1f{task.id}\x1e".encode())
        return pick

    def _which(self, index: int) -> int:
        """The environment of a pick: a golden-ratio (Weyl) sequence through the weights spreads each one evenly."""
        point = (self._offset + index * _GOLDEN) % 2**64 / 2**64 * self._bounds[-1]
        return next((i for i, bound in enumerate(self._bounds) if point < bound), len(self._bounds) - 1)

    def _reader(self, at: int) -> Callable[[], Iterator[Task]]:
        environment, name = self._environments[at], self._names[at]

        def read() -> Iterator[Task]:
            found = False
            try:
                for task in environment.tasks(self._split):
                    if not isinstance(task, Task):
                        raise PluginError(f"environment {name!r} yields {task!r} among its tasks; expected a Task")
                    found = True
                    yield task
            except QuintainError:
                raise
            except Exception as e:
                raise PluginError(
                    f"environment {name!r} failed in tasks({self._split!r}): {type(e).__name__}: {e}"
                ) from e
            if not found:
                raise NoTasksError(
                    f"environment {name!r} has no tasks in its {self._split!r} split; check its arguments "
                    f"(`quintain info {name}` shows them)"
                )

        return read


def _shuffled(read: Callable[[], Iterator[Task]], seed: int) -> Iterator[Task]:
    """Passes over a split without end, each in another order: a random one of the next `WINDOW` tasks at a time."""
    epoch = 0
    while True:
        rng = Random(derived_seed(seed, epoch))
        source = read()
        window = list(islice(source, WINDOW))
        for task in source:
            at = rng.randrange(len(window))
            yield window[at]
            window[at] = task
        rng.shuffle(window)
        yield from window
        epoch += 1
