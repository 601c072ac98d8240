"""What a rank says of itself, from a thread beside its work."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from quintain_learners.fsdp.signs import RankWatch, Sign, stacks


class Gathered:
    """Stands for weights that are there for a moment."""


def beside(work: Callable[[threading.Event], Any]) -> tuple[Sign, Any]:
    """Renew a sign in a thread while *work* waits for it; return both."""
    sign, renewed = Sign(), threading.Event()
    kept: list[str] = []

    def renew() -> None:
        with open(os.memfd_create("stacks"), "w+b", buffering=0) as file:
            kept.append(stacks(file))
            sign.renew(kept[0])
        renewed.set()

    thread = threading.Thread(target=renew)
    thread.start()
    returned = work(renewed)
    thread.join()
    return sign, returned


def waiting(renewed: threading.Event) -> weakref.ref[Gathered]:
    gathered = Gathered()
    renewed.wait(60)
    return weakref.ref(gathered)


def test_a_sign_says_where_the_process_is() -> None:
    sign, _ = beside(waiting)
    place = sign.place.decode()
    assert "threading.py" in place or place.endswith("in waiting")
    assert not sign.waits
    assert sign.time > 0 < sign.cpu


def test_a_sign_keeps_nothing_alive() -> None:
    """Not even until garbage is collected."""
    gc.collect()
    gc.disable()
    try:
        _, gathered = beside(waiting)
        assert gathered() is None
    finally:
        gc.enable()


def test_a_rank_that_never_gave_a_sign_is_silent_and_has_no_place() -> None:
    """It was stopped before its first."""
    watch = RankWatch(1e-9, idle=True)
    assert watch.stuck({1: Sign()}) == {}
    assert "has given no sign of life since it was started" in watch.stuck({1: Sign()})[1]


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def renewed() -> Sign:
    sign = Sign()
    sign.renew("")
    return sign


def test_a_rank_that_gets_no_processor_does_not_do_nothing() -> None:
    """Two processes on one processor, of which the other has nearly all of it."""
    before, allowed = renewed(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        used = time.process_time()
        spin(1.0)
        used = time.process_time() - used
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, allowed)
    after = renewed()
    assert after.cpu - before.cpu > used + 0.1
