"""The tasks of each step: the train splits of the environments, shuffled and mixed by weight.

The order is a function of environments, weights, seed and the number of picks. So the state is
small: a resumed run repeats the picks, without rollouts, up to the checkpoint. A curriculum that
adapts to outcomes is a subclass in a plugin (kind ``curriculum``).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import Any

from ..errors import NoTasksError, RunError
from ..types.sampling import derived_seed
from ..types.task import Task
from .environment import Environment, yielded
from .sampling_plan import SamplingPlan

TaskReader = Callable[[], Iterator[Task]]

WINDOW = 4096
"""Size of the shuffle buffer: a split of at most this size is shuffled completely, a longer one as
a stream.
"""
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly."""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A task to try.

    Attributes:
        environment: position in the curriculum's list.
        index: number of earlier picks of the run.
        visit: number of earlier picks of this task (by id); part of the seed of a rollout, so that
            a second visit draws new samples.
    """

    environment: int
    task: Task
    index: int
    visit: int


class TaskStream:
    """Endless tasks of one split, reshuffled for every pass.

    Args:
        read: starts a pass over the split.
        seed: of this stream alone.
    """

    def __init__(self, read: TaskReader, seed: int) -> None:
        self.read, self.seed = read, seed
        self.restart()

    def restart(self) -> None:
        """Go back to the first task."""
        self._stream = shuffled(self.read, self.seed)
        self._digest = hashlib.sha256()

    def next(self) -> tuple[int, Task]:
        """Return the number of the pass, from 0, and its next task.

        Raises:
            NoTasksError: the split has none.
        """
        number, task = next(self._stream)
        self._digest.update(f"{task.id}\x1e".encode())
        return number, task

    def draw(self) -> Task:
        """Return the next task to try."""
        return self.next()[1]

    def fingerprint(self) -> str:
        """Digest of all tasks read so far."""
        return self._digest.hexdigest()


class Curriculum:
    """Mixes the train splits of several environments by weight.

    Each split is shuffled by the seed and reshuffled for every pass. The mix follows the weights
    evenly: after n picks each environment is within a few picks of its share.

    Args:
        environments: where tasks come from.
        weights: share of each; equal by default. They need not add up to 1.
        names: of the environments, for errors.
        seed: of the run.
        plan: read by curricula that adapt.
        horizon: number of picks of the run if no group is rejected; 0: unknown. For curricula that
            plan ahead.
    """

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        *,
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        split: str = "train",
        plan: SamplingPlan | None = None,
        horizon: int = 0,
    ) -> None:
        self._environments = tuple(environments)
        self._names = tuple(names or (type(e).__name__ for e in environments))
        self._weights = list(weights or [1.0] * len(self._environments))
        self._bounds = list(accumulate(self._weights))
        self._seed, self._split = seed, split
        self.plan, self._horizon = plan or SamplingPlan(), horizon
        self._streams = [self.stream(i) for i in range(len(self._environments))]
        self._begin()

    @classmethod
    def check(cls, task: Task, name: str, plan: SamplingPlan) -> None:
        """Refuse an environment whose first *task* lacks the attribute that the plan orders by;
        here a no-op.
        """

    async def prepare(self, run: Any) -> dict[str, Any]:
        """Measure tasks with the initial policy of *run* (a `Run`); return metrics of step 0. Here
        a no-op.
        """
        return {}

    def stream(self, at: int) -> TaskStream:
        """Return the tasks of environment *at*."""
        return TaskStream(self.reader(at), derived_seed(self._seed, "curriculum", at))

    def _begin(self) -> None:
        for stream in self._streams:
            stream.restart()
        self._offset = derived_seed(self._seed, "mix")
        self._visits: Counter[str] = Counter()
        self._drawn = 0

    def pick(self, count: int) -> list[Pick]:
        """Return the next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
        """
        return [self._next() for _ in range(count)]

    def record(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Record the numbers of successful and of valid rollouts, by index of the pick. Here a
        no-op.
        """

    def notices(self) -> list[str]:
        """Return new messages for the user."""
        return []

    def metrics(self) -> dict[str, int]:
        """Return the metrics of the curriculum; none here."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {"picked": self._drawn, "fingerprint": self._fingerprint()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state` by repeating the picks from the start.

        Raises:
            RunError: the environments now yield different tasks.
        """
        self._begin()
        self._return_to(state)
        if state["fingerprint"] != self._fingerprint():
            raise RunError(
                f"the environments {', '.join(self._names)} no longer yield the tasks of the "
                "checkpoint, so the run cannot be resumed; restore its original data, or start a "
                "new run from its model"
            )

    def _return_to(self, state: Mapping[str, Any]) -> None:
        for _ in range(state["picked"]):
            self._next()

    def _fingerprint(self) -> str:
        """Digest of the tasks that were read, in their order."""
        return hashlib.sha256(
            "".join(stream.fingerprint() for stream in self._streams).encode()
        ).hexdigest()[:16]

    def _next(self) -> Pick:
        environment = self._which(self._drawn)
        task = self._streams[environment].draw()
        pick = Pick(
            environment=environment, task=task, index=self._drawn, visit=self._visits[task.id]
        )
        self._visits[task.id] += 1
        self._drawn += 1
        return pick

    def _which(self, index: int) -> int:
        """Return the environment of a pick: a golden-ratio (Weyl) sequence through the weights
        spreads each one evenly.
        """
        point = (self._offset + index * _GOLDEN) % 2**64 / 2**64 * self._bounds[-1]
        return next(
            (i for i, bound in enumerate(self._bounds) if point < bound), len(self._bounds) - 1
        )

    def reader(self, at: int) -> TaskReader:
        """Return a function that starts a pass over the tasks of environment *at*, checked one by
        one.
        """
        environment, name = self._environments[at], self._names[at]

        def read() -> Iterator[Task]:
            empty = True
            for task in yielded(environment, "tasks", self._split, name):
                empty = False
                yield task
            if empty:
                raise NoTasksError(
                    f"environment {name!r} has no tasks in its {self._split!r} split; check its "
                    f"arguments (`quintain info {name}` shows them)"
                )

        return read


def shuffled(read: TaskReader, seed: int) -> Iterator[tuple[int, Task]]:
    """Yield endless passes over a split, each in a different order, shuffled in a buffer of
    `WINDOW` tasks.

    Yields the number of the pass, from 0, and a task.
    """
    number = 0
    while True:
        rng = Random(derived_seed(seed, number))
        source = read()
        window = list(islice(source, WINDOW))
        for task in source:
            position = rng.randrange(len(window))
            yield number, window[position]
            window[position] = task
        rng.shuffle(window)
        for task in window:
            yield number, task
        number += 1
