"""Ctrl-C and SIGTERM: the first signal requests an orderly stop, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .screen import Screen


@contextmanager
def stop_on_signal(
    screen: Screen, announcement: str, on_stop: Callable[[], object] = lambda: None
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a stop was requested; a second signal raises `KeyboardInterrupt`.

    Main thread only. *on_stop* is called inside the signal handler, between two arbitrary instructions.

    Args:
        announcement: line on the screen at the first signal.
        on_stop: called at the first signal; an event loop is woken with ``loop.call_soon_threadsafe``.
    """
    asked = False

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        on_stop()
        screen.note(announcement)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
