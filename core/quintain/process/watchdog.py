"""Names an author's code that blocks the event loop, and ends a process that such code keeps from
ending.

Episodes, rewards and hooks run in the main thread: one that blocks stops all others, and no time
limit applies to it.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from ..tracebacks import place_of

CALLERS = tuple(
    f"quintain.{m}"
    for m in ("interfaces.", "registry.", "rollouts.", "run.hooks", "models.tokenizer")
)
"""The modules that call an author's code, or a model's chat template."""


def seconds_of(variable: str, default: float) -> float:
    """Return the number in an environment variable."""
    try:
        return float(os.environ.get(variable, default))
    except ValueError:
        return default


def blocking_call(frame: FrameType | None) -> tuple[FrameType, str] | None:
    """Return the step of the event loop in which an author's code runs in *frame*, and its name;
    ``None`` if none runs.

    Without an event loop the step is the author's function.
    """
    # the frames inside the innermost one of Quintain, innermost first
    inner: list[FrameType] = []
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("quintain."):
        inner.append(frame)
        frame = frame.f_back
    # Where the author's code started a task, the step of that task is among these frames.
    started = next((i for i, f in enumerate(inner) if _is_step(f)), None)
    if started is None and (frame is None or not frame.f_globals["__name__"].startswith(CALLERS)):
        return None
    frames = inner[:started]
    function = next((f.f_code.co_qualname for f in reversed(frames) if _place([f])), None)
    if function is None:
        return None
    name = f"{function} ({_place(frames)})"
    if started is not None:
        return inner[started], name
    # Else a caller in Quintain knows the task, as its variable *task* or *rollout*.
    task = ""
    while frame is not None and not _is_step(frame):
        values = frame.f_locals
        rollout_task = getattr(values.get("rollout"), "task", None)
        task = task or getattr(values.get("task") or rollout_task, "id", "")
        frame = frame.f_back
    if task:
        name += f" on task {task!r}"
    return frame or inner[-1], name


def _is_step(frame: FrameType) -> bool:
    """Return whether *frame* is that of `asyncio.Handle._run`, which the event loop calls for each
    step of a task.
    """
    return (
        frame.f_code.co_qualname == "Handle._run"
        and frame.f_globals.get("__name__") == "asyncio.events"
    )


def _place(frames: Sequence[FrameType]) -> str:
    """Return the place in the author's code of *frames*, innermost first."""
    traceback: TracebackType | None = None
    for frame in frames:
        traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno or 0)
    return place_of(RuntimeError().with_traceback(traceback))


class Watchdog(AbstractContextManager["Watchdog"]):
    """A thread that calls *report* when the main thread has run one step of an author's code for
    *seconds*.

    It reports again after twice that time, and so on. Code that keeps Python's global lock stops
    this thread, too.

    Args:
        report: called with the function, its file and line and the task, and with the seconds.
    """

    def __init__(self, report: Callable[[str, float], None], seconds: float) -> None:
        self._report, self._seconds, self._ended = report, seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        # a thread that runs while the interpreter ends is killed, which may abort the process
        self._thread.join(1.0)

    def _watch(self) -> None:
        main, pause = threading.main_thread().ident or 0, min(1.0, self._seconds / 4)
        step: FrameType | None = None
        spent, due = 0.0, self._seconds
        while not self._ended.wait(pause):
            call = blocking_call(sys._current_frames().get(main))
            # the reference to the frame keeps it apart from later ones
            if call is None or call[0] is not step:
                step = None if call is None else call[0]
                spent, due = 0.0, self._seconds
                continue
            spent += pause
            if spent >= due:
                due *= 2
                self._report(call[1], spent)


def warn(call: str, seconds: float) -> None:
    """Report that *call* blocks the event loop, on standard error."""
    stop = "Ctrl-C twice ends the process"
    print(
        f"warning: waiting {seconds:.0f} s for {call}, which blocks all episodes; {stop}",
        file=sys.stderr,
        flush=True,
    )


_end: threading.Timer | None = None


def end_within(seconds: float, status: int) -> None:
    """End the process after *seconds*, whatever runs then, unless `cancel_end` is called before."""
    global _end

    def end() -> None:
        call = blocking_call(sys._current_frames().get(threading.main_thread().ident or 0))
        reason = f"{call[1]} did not stop" if call else "it did not stop"
        print(f"the process was ended: {reason} within {seconds:g} s", file=sys.stderr, flush=True)
        os._exit(status)

    cancel_end()
    _end = threading.Timer(seconds, end)
    _end.daemon = True
    _end.start()
    if sys.__stderr__ is not None:  # where code keeps the global lock, no thread of Python runs
        faulthandler.dump_traceback_later(seconds + 2, exit=True, file=sys.__stderr__)


def cancel_end() -> None:
    """Let the process live."""
    global _end
    if _end is not None:
        _end.cancel()
        _end.join(1.0)
        faulthandler.cancel_dump_traceback_later()
        _end = None


def end_without_threads(status: int) -> None:
    """End the process with *status* if an author's code left threads that it would wait for."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(1.0)
            if thread.is_alive():
                print(
                    f"warning: the thread {thread.name} still runs; the process ends without it",
                    file=sys.stderr,
                )
                atexit._run_exitfuncs()
                sys.stdout.flush()
                os._exit(status)
