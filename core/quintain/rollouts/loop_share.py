"""Lets the event loop answer others while thousands of episodes have something to do at once."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

TURNS = 4
"""Turns that begin in one round of the loop. It is a constant, not a share of measured time, so that
the order of events does not depend on the speed of the machine.
"""


class LoopShare:
    """Bounds how many turns the loop begins until it looks at sockets and timers again.

    The loop runs all that is ready in one round. 4,096 turns that begin at once would be one round
    of a second or more, in which no server is answered and no time limit is kept.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left = TURNS
        self._counting = False

    async def take(self) -> None:
        """Wait until a round of the loop has room for another turn."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            self._left = TURNS
            loop.call_soon(self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin another round, in which turns go on that wait for one."""
        self._left = TURNS
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else its episode was cancelled
                waiter.set_result(None)
                self._left -= 1
        self._counting = self._left < TURNS
        if self._counting:
            loop.call_soon(self._next, loop)


_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = WeakKeyDictionary()


async def take_turn() -> None:
    """Wait until the running loop has room for another turn."""
    await _shares.setdefault(asyncio.get_running_loop(), LoopShare()).take()
