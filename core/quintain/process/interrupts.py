"""Ctrl-C and SIGTERM: the first signal requests an orderly stop, the second stops at once.

An author's code that blocks or catches everything delays that by `GRACE` seconds at most, twice
that after one SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from ..console.screen import Screen
from ..tracebacks import describe_error
from .pauses import PausingLoop
from .watchdog import Watchdog, blocking_call, cancel_end, end_within, seconds_of

A = TypeVar("A")
GRACE = 10.0
"""Seconds between a request to stop and the end of a process that does not;
``QUINTAIN_GRACE_SECONDS`` changes it.
"""

CANCEL_SECONDS = 5.0
"""Seconds that cancelled tasks get to end."""


@contextmanager
def stop_on_signal(
    screen: Screen, announcement: str, on_stop: Callable[[], object] = lambda: None
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a stop was requested; a second signal raises
    `KeyboardInterrupt`.

    Main thread only. *on_stop* is called inside the signal handler, between two arbitrary
    instructions.

    Args:
        announcement: line on the screen at the first signal.
        on_stop: called at the first signal; an event loop is woken with
            ``loop.call_soon_threadsafe``.
    """
    stop_requested, grace = False, seconds_of("QUINTAIN_GRACE_SECONDS", GRACE)

    def again(call: str, seconds: float) -> None:
        screen.warn(
            f"{call} blocks the process for {seconds:.0f} s after SIGTERM and is interrupted"
        )
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stop_requested
        if stop_requested:
            end_within(grace, 128 + number)
            raise KeyboardInterrupt
        stop_requested = True
        on_stop()
        screen.note(announcement)
        if number == signal.SIGTERM:  # a scheduler sends no second one
            stack.enter_context(Watchdog(again, grace))
            # it may keep Python's global lock from the watchdog
            if _loop is not None and blocking_call(frame):
                end_within(3 * grace, 128 + number)
                _loop.call_soon_threadsafe(cancel_end)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    with ExitStack() as stack:
        try:
            yield lambda: stop_requested
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            # else other tasks may still run
            if not isinstance(sys.exception(), asyncio.CancelledError):
                cancel_end()


class _Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`; the end of the event loop does not wait for them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def run_coroutine(main: Coroutine[Any, Any, A]) -> A:
    """Run a coroutine as `asyncio.run` does, for author's code: it leaves threads behind, ends a
    forked child that returns to the loop, and no timer counts a pause of the process.

    Raises:
        KeyboardInterrupt: the task was cancelled.
    """
    global _loop
    runner, stuck = asyncio.Runner(loop_factory=PausingLoop), False
    # As a runner does without a factory: else a loop with a task that never ends would be collected,
    # and the end of that task waited for.
    asyncio.set_event_loop(runner.get_loop())

    async def started() -> A:
        global _loop
        nonlocal stuck
        _loop = asyncio.get_running_loop()
        _loop.set_default_executor(_Threads())
        try:
            return await main
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            stuck = bool(others and (await asyncio.wait(others, timeout=CANCEL_SECONDS))[1])

    task, last_report = runner.get_loop().create_task(started()), ""
    try:
        while not task.done():
            try:
                runner.get_loop().run_until_complete(task)
            except SystemExit as e:
                # of a task that an author's code started; whoever awaits that gets it, too
                report = describe_error(e)
                if report != last_report:
                    Screen().warn(
                        f"{report} in a task that is not Quintain's; the command continues"
                    )
                last_report = report
        return task.result()
    except asyncio.CancelledError as e:
        raise KeyboardInterrupt from e
    finally:
        if not stuck:  # closing waits for every task, also for one that catches its cancellation
            with suppress(KeyboardInterrupt):  # of further tasks; the first is being raised
                runner.close()
            asyncio.set_event_loop(None)
        if task.done() and not task.cancelled():
            task.exception()  # has been seen: else its traceback is printed
        _loop = None
        cancel_end()


def run_stoppable(main: Coroutine[Any, Any, A], screen: Screen | None = None) -> A:
    """Run a coroutine as `run_coroutine` does, until the first signal cancels it; *screen* says so.

    Raises:
        KeyboardInterrupt: a signal came.
    """

    async def stoppable() -> A:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        text = "stopping; press Ctrl-C again to stop at once"
        on_stop = partial(loop.call_soon_threadsafe, task.cancel)
        with stop_on_signal(screen or Screen(), text, on_stop):
            return await main

    return run_coroutine(stoppable())


_loop: asyncio.AbstractEventLoop | None = None


os.register_at_fork(after_in_child=lambda: _loop and _loop.call_soon(os._exit, 1))
