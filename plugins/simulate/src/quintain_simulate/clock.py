"""A clock that skips: an event loop that jumps to its next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quintain.errors import RunError

A = TypeVar("A")


class _Skipping(selectors.DefaultSelector):
    """Adds each wait to `seconds` and returns at once. Nothing outside of the loop can wake it."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RunError("the simulation stands still: nothing is running, and nothing is due")
        if timeout > 0:
            self.seconds += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` begins at 0 and passes without waiting."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)
        # Timers this close are one moment: sums of floats differ in their last digits.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._skipping.seconds


def run_simulated(main: Callable[[], Coroutine[Any, Any, A]]) -> A:
    """Return what *main* returns on a `SimulatedLoop`.

    Raises:
        RunError: everything waits for something that never comes.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main())
