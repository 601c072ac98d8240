"""Processes that tests start and kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def ended(pid: int) -> bool:
    """Return whether the process *pid* has ended, also where nobody has asked for its exit code."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second one while it is read
        return True


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether *condition* becomes true within *seconds*."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()
