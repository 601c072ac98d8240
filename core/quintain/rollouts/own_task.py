"""Runs an author's code in a task of its own, so that neither its cancellation nor its delay
reaches the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import InfrastructureError
from ..interfaces.agent import Limits
from ..types.task import Task

CLEANUP_SECONDS = 5.0  # that a cancelled task gets to end


class TimeLimitExceeded(InfrastructureError):
    """An episode or a reward took longer than its limit."""


async def in_own_task(
    code: Callable[[], Awaitable[Any]],
    limits: Limits,
    limit: str,
    code_name: str,
    task: Task,
    timeout_error: Callable[[str], Exception] = TimeLimitExceeded,
) -> Any:
    """Return what *code* returns or raises, which may be any exception, `asyncio.CancelledError`
    included.

    Code that takes too long is cancelled. Nothing waits for code that catches that; a warning has
    *code_name* and *task*.

    Raises:
        TimeLimitExceeded: it took longer than the *limit* of this name; or what *timeout_error* made
            of the message at that moment.
    """
    loop = asyncio.get_running_loop()
    seconds = getattr(limits, limit)
    error: BaseException | None = None
    # A future that the task settles, because `asyncio.wait_for` and `asyncio.wait` cost several
    # times as much, and an episode makes many such calls.
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    message = f"{code_name} took over {seconds} s (limits.{limit})"
    timer = None
    if seconds:
        timer = loop.call_later(
            seconds, lambda future: _settle(future, None, timeout_error(message)), outcome
        )
    runner = loop.create_task(_run(outcome, code, task))
    try:
        result, error = await outcome
        if error is not None:
            raise error
        return result
    finally:
        if timer:
            timer.cancel()
        if not runner.done():
            runner.cancel()
            if (await asyncio.wait({runner}, timeout=CLEANUP_SECONDS))[1]:
                warning = (
                    "%s on task %r catches its cancellation and still runs; nothing waits for it "
                    "any longer"
                )
                logging.getLogger(__name__).warning(warning, code_name, task.id)
                # Once more: it caught the first one, and may wait for a turn of the policy now.
                runner.cancel()
        elif not runner.cancelled():
            runner.exception()  # has been seen: else the traceback of a Ctrl-C is printed
        # The traceback of the error holds this frame, and the frame would hold the error: a cycle
        # that only the garbage collector frees.
        del error, outcome


async def _run(
    outcome: asyncio.Future[Any], code: Callable[[], Awaitable[Any]], task: Task
) -> None:
    try:  # the watchdog reads *task* from this frame
        _settle(outcome, await code())
    except KeyboardInterrupt:  # ends the event loop at once, before other code may block
        raise
    except BaseException as e:  # noqa: BLE001 - so would a `SystemExit`
        _settle(outcome, None, e)
    finally:
        del outcome  # no cycle, as in `in_own_task`


def _settle(outcome: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
    if not outcome.done():
        outcome.set_result((result, error))
