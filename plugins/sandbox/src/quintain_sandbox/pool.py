"""Containers that wait for their program, started ahead: one costs 0.2 s and more, and serves a
single program.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quintain import InfrastructureError
from quintain.errors import UsageError

from .program import ProgramLimits

log = logging.getLogger("quintain.sandbox")
FILLERS = 2
"""Containers that are started ahead at one time."""
SHAPES = 3
"""Shapes of which containers wait."""
PAUSE = 2.0
"""Seconds between attempts to start a container ahead after one that failed."""


@dataclass(frozen=True)
class Shape:
    """The limits that a container has from its creation; the others are set for each program."""

    memory: int
    processes: int
    disk: int
    open_files: int

    @classmethod
    def of(cls, limits: ProgramLimits) -> Shape:
        return cls(limits.memory, limits.processes, limits.disk, limits.open_files)


class Ready(Protocol):
    """A container that waits."""

    @property
    def alive(self) -> bool:
        """Return whether it still waits."""


W = TypeVar("W", bound=Ready)


class ContainerPool(Generic[W]):
    """Keeps containers ready, as many of each shape that was asked for lately.

    Args:
        size: how many in all.
        make: creates and starts a container of a shape; blocks, and raises `InfrastructureError`.
        remove: has a container removed; neither blocks nor raises.
    """

    def __init__(self, size: int, make: Callable[[Shape], W], remove: Callable[[W], None]) -> None:
        self._size, self._make, self._remove = size, make, remove
        self._lately: OrderedDict[Shape, None] = OrderedDict()
        """The last shapes, the newest at the end."""
        self._ready: dict[Shape, deque[W]] = {}
        self._making: Counter[Shape] = Counter()
        self._urgent = 0
        self._state = "quiet"
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._fill, name="docker pool", daemon=True)
            for _ in range(min(FILLERS, size))
        ]
        for thread in self._threads:
            thread.start()

    def fill(self, shape: Shape) -> None:
        """Begin to start containers ahead: at first of *shape*, then of those that `take` is asked
        for.
        """
        with self._changed:
            self._state = "filling"
            self._lately.clear()
            self._lately[shape] = None
            self._changed.notify_all()

    def ready(self) -> int:
        """Return how many containers wait."""
        with self._changed:
            return sum(map(len, self._ready.values()))

    def take(self, shape: Shape) -> W:
        """Return a waiting container: one that is ready, else a new one, before which no others are
        started ahead.

        Raises:
            InfrastructureError: the engine does not start one.
            UsageError: the pool is closed.
        """
        while (waiting := self._pop(shape)) is not None:
            if waiting.alive:
                return waiting
            self._remove(waiting)  # the engine was restarted, or somebody removed it
        try:
            return self._make(shape)
        finally:
            with self._changed:
                self._urgent -= 1
                self._changed.notify_all()

    def _pop(self, shape: Shape) -> W | None:
        """Take one that is ready; ``None`` counts as urgent."""
        with self._changed:
            if self._state == "closed":
                raise UsageError("the sandbox is not started")
            self._lately[shape] = None
            self._lately.move_to_end(shape)
            if len(self._lately) > min(SHAPES, max(1, self._size)):
                self._lately.popitem(last=False)
            ready = self._ready.get(shape)
            self._urgent += not ready
            self._changed.notify_all()
            return ready.popleft() if ready else None

    def close(self) -> None:
        """Remove all of them; `take` raises from now on."""
        with self._changed:
            self._state = "closed"
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for ready in self._ready.values():
            for waiting in ready:
                self._remove(waiting)
        self._ready.clear()

    def _fill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._state == "closed" or self._missing() or self._surplus()
                )
                if self._state == "closed":
                    return
                surplus, shape = self._surplus(), self._missing()
                if surplus is not None:
                    self._remove(self._ready[surplus].popleft())
                if shape is None:
                    continue
                self._making[shape] += 1
            self._add(shape)

    def _share(self) -> int:
        return max(1, self._size // max(1, len(self._lately)))

    def _missing(self) -> Shape | None:
        """Return the shape of which there are too few, the newest first."""
        if self._urgent or self._state != "filling":
            return None
        share, ready, making = self._share(), self._ready, self._making
        return next(
            (s for s in reversed(self._lately) if len(ready.get(s, ())) + making[s] < share), None
        )

    def _surplus(self) -> Shape | None:
        """Return the shape of which there are too many."""
        share = self._share()
        return next(
            (s for s, r in self._ready.items() if len(r) > (share if s in self._lately else 0)),
            None,
        )

    def _add(self, shape: Shape) -> None:
        try:
            waiting = self._make(shape)
        except InfrastructureError as e:  # raised again where a program needs a container
            log.warning("no container was started ahead: %s", e)
            waiting = None
        with self._changed:
            if waiting is not None:
                self._ready.setdefault(shape, deque()).append(waiting)
            else:
                self._changed.wait_for(lambda: self._state == "closed", timeout=PAUSE)
            self._making[shape] -= 1
            self._changed.notify_all()
