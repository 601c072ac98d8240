"""Signs of life of a rank, and what they say of one that makes no progress."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import torch

BEAT = 1.0
"""Seconds between two signs of life."""
BUSY = 0.02
"""Share of a processor below which a process does nothing."""
_TORCH = str(Path(torch.__file__).parent)
_COLLECTIVES = str(Path(_TORCH, "distributed"))
_OWN = str(Path(__file__).parent)


class Sign(ctypes.Structure):
    """The last sign of life of a rank, in memory that it shares with the driver.

    Attributes:
        time: of the machine's monotonic clock; 0 before the first.
        cpu: seconds of processor time that the process has used.
        waits: whether it is in a collective, so that it may wait for another rank.
        place: file, line and function in which it is.
    """

    _fields_ = (
        ("time", ctypes.c_double),
        ("cpu", ctypes.c_double),
        ("waits", ctypes.c_bool),
        ("place", ctypes.c_char * 200),
    )

    def renew(self) -> None:
        """Describe this process as it is now."""
        frames = sys._current_frames()
        innermost = frames.get(threading.main_thread().ident or 0)
        # autograd runs hooks in threads of its own
        self.waits = any(_in_collective(frame) for frame in frames.values())
        self.place = _place(innermost).encode()[:199]
        self.cpu = time.process_time()
        self.time = time.monotonic()


def _in_collective(frame: FrameType | None) -> bool:
    """Return whether the calls of torch that end at *frame* are of a collective."""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_filename.startswith(_COLLECTIVES):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType | None) -> str:
    """Return where *frame* is, outside of torch and this package if it can be said."""
    named = frame
    while named is not None and named.f_code.co_filename.startswith((_TORCH, _OWN)):
        named = named.f_back
    named = named or frame
    if named is None:
        return ""
    return f"{named.f_code.co_filename}:{named.f_lineno} in {named.f_code.co_name}"


class Watch:
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
        return {
            rank: f"has done nothing for {now - self._busy[rank][0]:.0f} s, at "
            f"{signs[rank].place.decode(errors='replace')}"
            for rank in apart
        }
