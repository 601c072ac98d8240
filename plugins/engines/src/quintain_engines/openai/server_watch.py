"""What engines behind a server share: they say when it stands still, and no request waits for
ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quintain import InfrastructureError

__all__ = ["ServerWatch"]

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Request:
    what: str
    since: float
    may_take_longer: bool
    scope: asyncio.Timeout


class ServerWatch:
    """Warns once when a server stands still while requests wait for it, and ends them after
    *timeout*.

    Time is that of the event loop while it runs: a learner that blocks it makes no request older.

    Args:
        server: its name in messages.
        timeout: seconds, more than 0.
        setting: the key that changes *timeout*, such as ``engine.args.timeout``.
        sign_of_life: returns a value that changes while the server works; ``None`` if it does not
            answer within the seconds that it is given. It is called only after some seconds in
            which requests wait in silence.
        notice: seconds without a sign of life until a line names what is waited for.
        tick: seconds between two questions for a sign of life, at most.
    """

    def __init__(
        self,
        server: str,
        *,
        timeout: float,
        setting: str,
        sign_of_life: Callable[[float], Awaitable[object]],
        notice: float = 10.0,
        tick: float = 2.0,
    ) -> None:
        self._server = server
        self._timeout = timeout
        self._setting = setting
        self._sign_of_life = sign_of_life
        self._notice, self._tick = notice, min(tick, timeout / 4)
        self._requests: set[_Request] = set()
        self._clock = self._last_sign = 0.0
        self._quiet_since: float | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def request(self, what: str, *, may_take_longer: bool) -> AsyncIterator[None]:
        """Watch a request for *what*, which waits in the block.

        Args:
            may_take_longer: than the timeout, as long as the server shows signs of life; otherwise
                only its own answer counts.

        Raises:
            InfrastructureError: the timeout has passed.
        """
        try:
            async with asyncio.timeout(None) as scope:
                request = _Request(what, self._clock, may_take_longer, scope)
                self._requests.add(request)
                if self._task is None:
                    self._task = asyncio.create_task(self._watch())
                answered = False
                try:
                    yield
                    answered = True
                finally:
                    self._end(request, answered)
        except TimeoutError as e:
            if not scope.expired():
                raise
            raise InfrastructureError(
                f"{self._server} stands still: no answer to {what} for {self._timeout:g} s "
                f"({self._setting})"
            ) from e

    def _end(self, request: _Request, answered: bool) -> None:
        self._requests.discard(request)
        if answered:
            self._last_sign = self._clock
            self._report()
        if not self._requests and self._task is not None:
            self._task.cancel()
            self._task, self._quiet_since = None, None

    async def _watch(self) -> None:
        loop, last = asyncio.get_running_loop(), None
        while True:
            before = loop.time()
            await asyncio.sleep(self._tick)
            self._clock += min(loop.time() - before, 3 * self._tick)
            # With the time that has just passed, so that nothing is said before the server is asked.
            if self._longest_silence() > min(self._notice, self._timeout) / 2:
                before = loop.time()
                sign = await self._sign_of_life(self._tick)
                self._clock += min(loop.time() - before, self._tick)
                if sign is not None and sign != last:
                    last, self._last_sign = sign, self._clock
            for request in self._requests:
                if self._silence(request) > self._timeout:
                    request.scope.reschedule(loop.time())
            self._report()

    def _longest_silence(self) -> float:
        return max(map(self._silence, self._requests), default=0.0)

    def _silence(self, request: _Request) -> float:
        since = max(request.since, self._last_sign) if request.may_take_longer else request.since
        return self._clock - since

    def _report(self) -> None:
        """Say that the server has begun to stand still, or that it goes on."""
        silence = self._longest_silence()
        if silence >= self._notice and self._quiet_since is None:
            self._quiet_since = self._clock - silence
            waiting = ", ".join(
                f"{n} x {what}" for what, n in Counter(r.what for r in self._requests).items()
            )
            _log.warning(
                "%s has not answered for %.0f s; waiting for %s; a request fails after %g s (%s)",
                self._server, silence, waiting, self._timeout, self._setting,
            )  # fmt: skip
        elif silence < self._notice and self._quiet_since is not None:
            _log.warning(
                "%s answers again after %.0f s", self._server, self._clock - self._quiet_since
            )
            self._quiet_since = None
