"""Lets the event loop answer others while thousands of episodes have something to do at once."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from weakref import WeakKeyDictionary

SLICE = 0.01
"""Seconds that a round of the loop may take; what has begun is not interrupted."""
MOST = 64
"""Turns that begin in one round of the loop."""


class LoopShare:
    """Bounds how long the loop runs turns until it looks at sockets and timers again.

    The loop runs all that is ready in one round. 4,096 turns that begin at once would be one round
    of a second or more, in which no server is answered and no time limit is kept. So each round
    begins a few turns: one more than the round before if that was short, else half as many.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._began = 0.0
        self._batch = self._left = MOST // 4
        self._counting = False

    async def take(self) -> None:
        """Wait until a round of the loop has room for another turn."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting, self._left, self._began = True, self._batch, perf_counter()
            loop.call_soon(self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin another round, in which turns go on that wait for one."""
        now = perf_counter()
        long = now - self._began > SLICE
        self._batch = max(1, self._batch // 2) if long else min(MOST, self._batch + 1)
        self._left, self._began = self._batch, now
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else its episode was cancelled
                waiter.set_result(None)
                self._left -= 1
        self._counting = self._left < self._batch
        if self._counting:
            loop.call_soon(self._next, loop)


_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = WeakKeyDictionary()


async def take_turn() -> None:
    """Wait until the running loop has room for another turn."""
    await _shares.setdefault(asyncio.get_running_loop(), LoopShare()).take()
