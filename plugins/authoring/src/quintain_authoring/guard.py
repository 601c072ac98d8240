"""Keeps what an author's code prints out of the report of `quintain check`, and ends code that does
not return.
"""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from quintain.process import Watchdog

KEPT = 3
"""Lines of the author's output that are shown."""
WIDEST = 200
"""Characters of each."""


class Stuck(KeyboardInterrupt):
    """A call of the author's code that did not return in time. Like Ctrl-C, no reward or episode
    can turn it into a failure of its own.

    Attributes:
        row: the check during which it happened.
    """

    row = "class"


class Output(io.TextIOBase):
    """Standard output for the author's code: keeps the first lines and the place of the first
    `print`.

    Attributes:
        lines: how many were written.
        first: the first of them.
        place: file and line of the code that wrote first.
    """

    def __init__(self) -> None:
        self.lines, self.first, self.place = 0, [""], ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self.place:
            caller = sys._getframe(1)
            self.place = f"{Path(caller.f_code.co_filename).name}, line {caller.f_lineno}"
        self.lines += text.count("\n")
        if len(self.first) <= KEPT:
            head, *others = text[: (KEPT + 1) * WIDEST].split("\n")[: KEPT + 1]
            self.first[-1] = (self.first[-1] + head)[:WIDEST]
            self.first += [line[:WIDEST] for line in others]
        return len(text)

    def report(self) -> str:
        """Return what was printed, and where to stop it; empty if nothing was."""
        shown = "\n".join(line for line in self.first[:KEPT] if line)
        fix = "remove the `print`: a run scores thousands of replies"
        return (
            f"its code printed {self.lines} lines ({self.place}); {fix}\n{shown}"
            if self.place
            else ""
        )


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise `Stuck` in the main thread where one call of an author's code blocks it for
    *seconds*.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    blocking = ""

    def end(call: str, spent: float) -> None:
        nonlocal blocking
        blocking = call
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    def raise_stuck(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # no event loop runs
            for task in asyncio.all_tasks():
                task.cancel()  # the other calls would block, too
        limit = f"did not return within {seconds:g} s and was ended"
        raise Stuck(
            f"{blocking} {limit}; look for a loop without an end or a sleep (--seconds allows "
            f"longer calls)"
        )

    before = signal.signal(signal.SIGALRM, raise_stuck)
    try:
        with Watchdog(end, seconds):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)
