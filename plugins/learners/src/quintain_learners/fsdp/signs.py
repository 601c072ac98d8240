"""Signs of life of a rank, and what they say of one that makes no progress."""

from __future__ import annotations

import ctypes
import faulthandler
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import IO

import torch

BEAT = 1.0
"""Seconds between two signs of life."""
BUSY = 0.02
"""Share of a processor, used or waited for, below which a process does nothing."""
NO_SIGN = ", and has given no sign of life since it was started; it is stopped"
_TORCH = str(Path(torch.__file__).parent)
_COLLECTIVES = str(Path(_TORCH, "distributed"))
_OWN = str(Path(__file__).parent)
_CALL = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


class Sign(ctypes.Structure):
    """The last sign of life of a rank, in memory that it shares with the driver.

    Attributes:
        time: of the machine's monotonic clock; 0 before the first.
        cpu: seconds for which its threads have used a processor, or waited for one.
        waits: whether it is in a collective, so that it may wait for another rank.
        place: file, line and function in which it is.
    """

    _fields_ = (
        ("time", ctypes.c_double),
        ("cpu", ctypes.c_double),
        ("waits", ctypes.c_bool),
        ("place", ctypes.c_char * 200),
    )

    def renew(self, text: str) -> None:
        """Describe this process as it is now; *text* is of `stacks`."""
        threads = [_calls(thread) for thread in text.split("\n\n")]
        # autograd runs hooks in threads of its own
        self.waits = any(_in_collective(calls) for calls in threads)
        main = f"0x{threading.main_thread().ident or 0:016x}"
        innermost = next((calls for calls in threads if calls and main in calls[0][0]), [])
        self.place = _place(innermost[1:]).encode()[:199]
        self.cpu = time.process_time() + processor_waits()
        self.time = time.monotonic()


def processor_waits() -> float:
    """Return the seconds for which threads of this process were ready to run, and others ran: on a
    busy machine it may get next to nothing. 0 where the system does not say.
    """
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            nanoseconds += int(path.read_text().split()[1])
    return nanoseconds / 1e9


def stacks(file: IO[bytes]) -> str:
    """Return the calls of all threads, written into *file* on the way.

    Not from `sys._current_frames`: whoever has a frame keeps its variables alive, among them
    weights that were gathered for a moment.
    """
    file.seek(0)
    file.truncate()
    faulthandler.dump_traceback(file, all_threads=True)
    file.seek(0)
    return file.read().decode(errors="replace")


def _calls(thread: str) -> list[tuple[str, str]]:
    """Return the head of a *thread*, and file and text of each of its calls, the innermost first."""
    head, *calls = thread.strip().split("\n")
    found = (_CALL.fullmatch(call) for call in calls)
    return [(head, "")] + [
        (m["file"], f"{m['file']}:{m['line']} in {m['name']}") for m in found if m is not None
    ]


def _in_collective(calls: list[tuple[str, str]]) -> bool:
    """Return whether the innermost calls, which are of torch, are of a collective."""
    of_torch = takewhile(lambda call: call[0].startswith(_TORCH), calls[1:])
    return any(file.startswith(_COLLECTIVES) for file, _ in of_torch)


def _place(calls: list[tuple[str, str]]) -> str:
    """Return the innermost of *calls* outside of torch and this package, if it can be said."""
    named = (text for file, text in calls if not file.startswith((_TORCH, _OWN)))
    return next(named, calls[0][1] if calls else "")


class RankWatch:
    """Finds ranks that make no progress while a command runs.

    Args:
        silence: seconds without a sign of life, or in which no rank uses a processor, after which
            ranks are given up.
        idle: whether ranks that use no processor are given up; with a GPU they may wait for it.
    """

    def __init__(self, silence: float, *, idle: bool) -> None:
        self._silence, self._idle = silence, idle
        self._busy: dict[int, tuple[float, float]] = {}

    def stuck(self, signs: Mapping[int, Sign]) -> dict[int, str]:
        """Return what to say of each rank that is stuck, from the *signs* of those that have not
        answered.
        """
        now = time.monotonic()
        silent = {
            rank: f"has given no sign of life for {now - sign.time:.0f} s; it is stopped, or the "
            "machine has no time for it"
            for rank, sign in signs.items()
            if sign.time and now - sign.time > self._silence
        }
        if silent or not self._idle:
            return silent
        for rank, sign in signs.items():
            since, cpu = self._busy.get(rank, (now, sign.cpu))
            if sign.cpu - cpu > BUSY * self._silence:
                since, cpu = now, sign.cpu
            self._busy[rank] = since, cpu
        if any(now - self._busy[rank][0] <= self._silence for rank in signs):
            return {}
        # Those in a collective wait for the others, if there are others.
        apart = [rank for rank, sign in signs.items() if not sign.waits] or list(signs)
        for rank in apart:
            idle, sign = now - self._busy[rank][0], signs[rank]
            place = f", at {sign.place.decode(errors='replace')}" if sign.time else NO_SIGN
            silent[rank] = f"has done nothing for {idle:.0f} s{place}"
        return silent
