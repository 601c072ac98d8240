"""A clock of the event loop that stands still while the whole process does: after SIGSTOP, or on a
machine that gives it no time.

Limits on time and `PolicyClock` count by the clock of the loop, so none of them counts a pause.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import NamedTuple

BEAT = 0.5
"""Seconds between two looks of the thread."""
LATE = 1.0
"""Seconds by which a look is late after a pause; less is noise."""


class _Look(NamedTuple):
    at: float  # seconds, monotonic
    busy: float  # seconds of CPU time of the process
    left_out: float  # seconds of all pauses before

    def pauses(self, now: float) -> float:
        """Return the seconds of all pauses up to *now*.

        CPU time is no pause: code that keeps Python's global lock delays the next look, too.
        """
        if now - self.at <= BEAT + LATE:
            return self.left_out
        busy = time.process_time() - self.busy
        return self.left_out + max(0.0, now - self.at - BEAT - busy)


class PausingClock:
    """Counts seconds without those in which no thread of the process ran.

    A thread looks every half a second. It is not delayed by code that blocks the event loop, whose
    time therefore counts. Code that keeps the global lock and only waits looks like a pause.
    """

    def __init__(self) -> None:
        # Replaced as one object, by the thread alone, so that no lock is held when a process forks.
        self._last = _Look(time.monotonic(), time.process_time(), 0.0)
        self._shown = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pauses", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Return seconds since an arbitrary moment; they never decrease."""
        last = self._last
        now = time.monotonic()
        # A pause is noticed when it is `LATE` long, and would set the clock back by that.
        self._shown = max(self._shown, now - last.pauses(now))
        return self._shown

    def close(self) -> None:
        """End the thread; from now on nothing is a pause."""
        self._ended.set()
        # a thread that runs while the interpreter ends is killed, which may abort the process
        self._thread.join(1.0)
        self._last = self._last._replace(at=math.inf)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            now = time.monotonic()
            self._last = _Look(now, time.process_time(), self._last.pauses(now))


class PausingLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers leave out the pauses of the process."""

    def __init__(self) -> None:
        self._clock = PausingClock()
        super().__init__()

    def time(self) -> float:
        """Return the seconds of `PausingClock`."""
        return self._clock.seconds()

    def close(self) -> None:
        """Close the loop, and end the thread of its clock."""
        super().close()
        self._clock.close()
