"""The time of an episode that is the policy's; it decides whose failure a limit on time is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .spans import Span


class PolicyClock:
    """Counts the seconds in which what the policy chose ran while no turn was sampled, by the clock
    of the event loop.

    Sampling is never counted, also where a tool asks another player for a turn: how long a turn
    takes is the engine's doing.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since = 0.0  # the last change of the two counts
        self._chosen = 0  # blocks that run now
        self._sampled = 0

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Count the time of the block; blocks that overlap count once."""
        self._change(1, 0)
        try:
            yield
        finally:
            self._change(-1, 0)

    @contextmanager
    def sampled(self) -> Iterator[Span]:
        """Count no time of the block, in which a turn is sampled; it is a span."""
        self._change(0, 1)
        try:
            with Span("turn") as span:
                yield span
        finally:
            self._change(0, -1)

    def seconds(self) -> float:
        """Return the seconds counted so far."""
        self._change(0, 0)
        return self._seconds

    def _change(self, chosen: int, sampled: int) -> None:
        now = asyncio.get_running_loop().time()
        if self._chosen and not self._sampled:
            self._seconds += now - self._since
        self._since = now
        self._chosen += chosen
        self._sampled += sampled
