"""The tasks of one split: read and checked one by one, shuffled in a buffer, pass after pass."""

from __future__ import annotations

import hashlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from random import Random
from typing import Any

from ..errors import NoTasksError
from ..interfaces.curriculum import TaskReader
from ..interfaces.environment import Environment, yielded
from ..types.sampling import derived_seed
from ..types.task import Task

WINDOW = 4096
"""Size of the shuffle buffer: a split of at most this size is shuffled completely, a longer one as
a stream.
"""


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
            wanted, remaining = set(places), iter(tasks)
            by_place = {i: task for i, task in enumerate(islice(remaining, start)) if i in wanted}
            if len(by_place) == len(wanted):
                yield from (by_place[i] for i in places)
                yield from remaining

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
                    position = self._rng.randrange(len(self._window))
                    drawn, self._window[position] = self._window[position], task
                    self._places[position] = self._seen
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
