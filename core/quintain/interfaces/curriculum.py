"""The tasks of each step: the train splits of the environments, shuffled and mixed by weight.

The order is a function of environments, weights, seed and the number of picks. A checkpoint has
where each split stands: what the shuffle buffer holds, by number, and the state of its random
numbers. So a resumed run reads the tasks of the buffer alone where the split is a sequence, and
what a generator yields once. A curriculum that adapts to outcomes is a subclass in a plugin (kind
``curriculum``).
"""

from __future__ import annotations

import hashlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from random import Random
from typing import Any

from ..errors import NoTasksError, RunError
from ..types.sampling import derived_seed
from ..types.task import Task
from .environment import Environment, yielded
from .sampling_plan import SamplingPlan
from .visits import Visits

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


class SplitReader:
    """The tasks of one split of an environment, checked one by one."""

    def __init__(self, environment: Environment[Any, Any], split: str, name: str) -> None:
        self._environment, self._split, self._name = environment, split, name

    def __call__(self) -> Iterator[Task]:
        """Begin a pass over all of them.

        Raises:
            NoTasksError: there are none.
        """
        empty = True
        for task in yielded(self._environment, "tasks", self._split, self._name):
            empty = False
            yield task
        if empty:
            raise NoTasksError(
                f"environment {self._name!r} has no tasks in its {self._split!r} split; check its "
                f"arguments (`quintain info {self._name}` shows them)"
            )

    def resumed(self, places: Sequence[int], start: int) -> Iterator[Task]:
        """Yield the tasks at *places*, all before number *start*, then those from *start* on.

        A sequence is asked for these alone; anything else runs through the tasks before them.
        """

        def ordered(tasks: Iterable[Task]) -> Iterator[Task]:
            if isinstance(tasks, Sequence):
                if len(tasks) >= start:
                    yield from (tasks[i] for i in chain(places, range(start, len(tasks))))
                return
            wanted, rest = set(places), iter(tasks)
            held = {i: task for i, task in enumerate(islice(rest, start)) if i in wanted}
            if len(held) == len(wanted):
                yield from (held[i] for i in places)
                yield from rest

        return yielded(self._environment, "tasks", self._split, self._name, ordered)


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
        self._stream = Shuffled(self.read, self.seed)
        self._digest = hashlib.sha256()

    def position(self) -> dict[str, Any]:
        """Return where the stream stands, as plain data."""
        return self._stream.position()

    def seek(self, position: Mapping[str, Any]) -> bool:
        """Go to a `position`; return whether the split has the tasks that it had then."""
        return self._stream.seek(position)

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
        """Digest of all tasks drawn since the last `restart`."""
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
        self._visits = Visits()
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
        return {
            "seed": self._seed,
            "picked": self._drawn,
            "streams": [stream.position() for stream in self._streams],
            "visits": self._visits.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`; that of an older version by repeating the picks from the
        start.

        Raises:
            RunError: the environments now yield different tasks.
        """
        self._begin()
        if "streams" not in state:
            self._return_to(state)
            same = state["fingerprint"] == self._fingerprint()
        else:
            self._drawn, self._visits = state["picked"], Visits.of(state["visits"])
            positions = zip(self._streams, state["streams"], strict=False)
            same = (
                state["seed"] == self._seed
                and len(state["streams"]) == len(self._streams)
                and all(stream.seek(position) for stream, position in positions)
            )
        if not same:
            raise RunError(
                f"the environments {', '.join(self._names)} no longer yield the tasks of the "
                "checkpoint, so the run cannot be resumed; restore its original data, or start a "
                "new run from its model"
            )

    def replayed_state(self) -> dict[str, Any]:
        """Return plain data from which the picks are repeated, for curricula whose streams have no
        position of their own.
        """
        return {"picked": self._drawn, "fingerprint": self._fingerprint()}

    def _return_to(self, state: Mapping[str, Any]) -> None:
        for _ in range(state["picked"]):
            self._next()

    def _fingerprint(self) -> str:
        """Digest of the tasks that were drawn, in their order."""
        return hashlib.sha256(
            "".join(stream.fingerprint() for stream in self._streams).encode()
        ).hexdigest()[:16]

    def _next(self) -> Pick:
        environment = self._which(self._drawn)
        task = self._streams[environment].draw()
        visit = self._visits.add(task.id)
        pick = Pick(environment=environment, task=task, index=self._drawn, visit=visit)
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
        return SplitReader(self._environments[at], self._split, self._names[at])


class Shuffled:
    """Yields endless passes over a split, each in a different order, shuffled in a buffer of
    `WINDOW` tasks.

    Yields the number of the pass, from 0, and a task.
    """

    def __init__(self, read: TaskReader, seed: int) -> None:
        self._read, self._seed = read, seed
        self._begin(0)

    def _begin(self, number: int) -> None:
        self._number = number
        self._rng = Random(derived_seed(self._seed, number))
        self._source: Iterator[Task] | None = None
        # the buffer, and the number of each of its tasks in the pass
        self._window: list[Task] = []
        self._places = array("Q")
        self._seen = 0  # tasks of the pass that were read
        self._taken = -1  # from the buffer since the pass was read to its end; -1 before

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        return self

    def __next__(self) -> tuple[int, Task]:
        while True:
            if self._source is None:
                self._source = self._read()
                self._window = list(islice(self._source, WINDOW))
                self._seen = len(self._window)
                self._places.extend(range(self._seen))
            if self._taken < 0:
                task = next(self._source, None)
                if task is not None:
                    at = self._rng.randrange(len(self._window))
                    drawn, self._window[at] = self._window[at], task
                    self._places[at] = self._seen
                    self._seen += 1
                    return self._number, drawn
                order = list(range(len(self._window)))
                self._rng.shuffle(order)
                self._window = [self._window[i] for i in order]
                self._places = array("Q", [self._places[i] for i in order])
                self._taken = 0
            if self._taken < len(self._window):
                self._taken += 1
                return self._number, self._window[self._taken - 1]
            self._begin(self._number + 1)

    def position(self) -> dict[str, Any]:
        """Return where the shuffle stands, as plain data."""
        if self._source is None:
            return {"pass": self._number}
        numbers = array("I", self._rng.getstate()[1])
        return {
            "pass": self._number,
            "seen": self._seen,
            "taken": self._taken,
            "places": b64encode(self._places.tobytes()).decode(),
            "random": b64encode(numbers.tobytes()).decode(),
            "tasks": _digest(self._window),
        }

    def seek(self, position: Mapping[str, Any]) -> bool:
        """Go to a `position`; return whether the split has the tasks that it had then."""
        self._begin(position["pass"])
        if "places" not in position:
            return True
        assert isinstance(self._read, SplitReader)
        self._places = array("Q", b64decode(position["places"]))
        self._seen, self._taken = position["seen"], position["taken"]
        numbers = array("I", b64decode(position["random"]))
        self._rng.setstate((3, tuple(numbers), None))
        self._source = self._read.resumed(self._places, self._seen)
        self._window = list(islice(self._source, len(self._places)))
        ended = self._taken < 0 or next(self._source, None) is None
        return ended and _digest(self._window) == position["tasks"]


def _digest(tasks: Sequence[Task]) -> str:
    """Return a digest of the ids of *tasks*, in their order."""
    return hashlib.sha256("\x1e".join(task.id for task in tasks).encode()).hexdigest()[:16]
