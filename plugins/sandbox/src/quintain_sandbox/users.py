"""Users of the host for programs: one each at one time, over all services of this process, where it
is root.
"""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path

FIRST = 1_900_000_000
"""First user id of programs: above those of users, services and containers."""
PER_PROCESS = 192
"""User ids of one trainer, by its process id."""
_lock = threading.Condition()
_taken: set[int] = set()


def take_user() -> int | None:
    """Return a user and group id that no other program of this process has; waits until there is
    one.

    ``None`` unless this process is root: nobody else can change to another user.
    """
    first = _first(os.geteuid(), os.getpid())
    if first is None:
        return None
    with _lock:
        while True:
            for user in range(first, first + PER_PROCESS):
                if user not in _taken:
                    _taken.add(user)
                    return user
            _lock.wait()


def give_back_user(user: int | None) -> None:
    """Say that nothing of *user* is left."""
    if user is not None:
        with _lock:
            _taken.discard(user)
            _lock.notify()


@functools.lru_cache(1)
def _first(user: int, process: int) -> int | None:
    if user != 0:
        return None
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = max(int(first) + int(count) - 1 for first, _, count in ranges)
    room = min(FIRST, last - (1 << 16)) if last > (1 << 17) else last - (1 << 14)
    places = max(1, (last - room) // PER_PROCESS - 1)
    return None if room <= 0 else room + process % min(places, 1_000_000) * PER_PROCESS
