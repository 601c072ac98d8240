"""A program while it runs: its streams, its limits, its end.

A thread per program moves the streams and keeps the limits, so that neither waits for the caller's
event loop, which training may block for seconds. Providers only open boxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import ceil
from typing import Literal

from quintain import InfrastructureError
from quintain.errors import UsageError

from .opened import Box, EndedBy, Finish
from .program import Program, ProgramLimits, ProgramResult, Status, as_bytes

CHUNK = 1 << 16
LINE = 1 << 20
"""Bytes of one line, unless the caller sets another limit."""
BESIDE = 64
"""Programs at one time that share the slot of another."""


class ReadError(Exception):
    """A line did not come as expected, by the program's doing. The program still runs."""


class LineTimeout(ReadError):
    """No whole line, and no end, within the time."""


class LineTooLong(ReadError):
    """More bytes without a newline than the limit."""


class RunningProgram:
    """A program that runs; made by `ProbedSandbox.start`. One task at a time reads from it, in any
    event loop.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._input: deque[bytes] = deque([program.stdin] if program.stdin else ())
        self._input_ends = not program.interactive
        self._input_refused = False
        self._unsent = len(program.stdin)
        self._drains: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._stop: Literal["closed", "stopped"] | None = None
        self._out = bytearray()
        self._searched = 0
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._box: Box | None = None
        self._opened: Future[None] = Future()
        self._result: Future[ProgramResult] = Future()
        """How it ended, for any thread; set in every case."""
        for future in (self._opened, self._result):
            future.set_running_or_notify_cancel()  # a cancelled task that waits does not cancel it

    async def write(self, data: bytes | str) -> None:
        """Queue *data*, text as UTF-8, for its standard input.

        A program that ended or closed it does not get it, as with a pipe.
        """
        data = as_bytes(data, "data")
        with self._lock:
            if self._input_ends:
                raise UsageError(
                    "the standard input of the program is closed; write before end_input()"
                )
            if self._input_refused or self._result.done():
                return
            self._input.append(data)
            self._unsent += len(data)
        self._notify()

    async def drain(self, most: int = LINE) -> None:
        """Wait until at most *most* of the bytes that were written have not reached its standard
        input.

        Returns, too, when it closed its standard input or ended. A caller that writes without bound
        to a program that need not read awaits this after each write.
        """
        with self._lock:
            if self._unsent <= most or self._result.done():
                return
            loop = asyncio.get_running_loop()
            drained = loop.create_future()
            self._drains.append((most, loop, drained))
        await drained

    async def end_input(self) -> None:
        """Close its standard input after what was written."""
        with self._lock:
            self._input_ends = True
        self._notify()

    async def read_line(self, *, seconds: float | None = None, limit: int = LINE) -> bytes:
        """Return the next line of its standard output, with its newline.

        The last line may lack one. ``b""``: the output and the program have ended, by themselves or
        by a limit (`wait` and `close` return which).

        Raises:
            LineTimeout: nothing to return within *seconds*; ``None`` waits until the time limit of
                the program.
            LineTooLong: more than *limit* bytes without a newline; they stay unread.
            InfrastructureError: the sandbox failed.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            with self._lock:
                line = self._take_line(limit)
                if line is None:
                    if self._reader is not None:
                        raise UsageError("another task reads from this program")
                    loop = asyncio.get_running_loop()
                    came = loop.create_future()
                    self._reader = loop, came
            if line is not None:
                return line
            try:
                async with asyncio.timeout(
                    None if deadline is None else max(0.0, deadline - time.monotonic())
                ):
                    await came
            except TimeoutError:
                raise LineTimeout(
                    f"no line from {self._program.argv[0]!r} within {seconds:g} s"
                ) from None
            finally:
                with self._lock:
                    self._reader = None

    def _take_line(self, limit: int) -> bytes | None:
        end = self._out.find(b"\n", self._searched) + 1
        if not end:
            self._searched = len(self._out)
            end = len(self._out) if self._result.done() else 0
        size = end or len(self._out)
        if size > limit:
            raise LineTooLong(
                f"{self._program.argv[0]!r} wrote {size} bytes where a line of at most {limit} is "
                f"read"
            )
        if end:
            line = bytes(self._out[:end])
            del self._out[:end]
            self._searched = 0
            return line
        if not self._result.done():
            return None
        self._result.result()  # raises if the sandbox failed
        return b""

    async def wait(self) -> ProgramResult:
        """Wait for its end. ``stdout`` of the result is what `read_line` did not take.

        Raises:
            InfrastructureError: the sandbox failed.
        """
        result = await asyncio.wrap_future(self._result)
        return replace(result, stdout=bytes(self._out)) if self._program.interactive else result

    async def close(self) -> ProgramResult:
        """End it if it still runs (status ``closed``), then `wait`."""
        self._kill("closed")
        return await self.wait()

    def _kill(self, why: Literal["closed", "stopped"]) -> None:
        """End it from any thread, without waiting. ``stopped`` makes its result an
        `InfrastructureError`.
        """
        with self._lock:
            self._stop = self._stop or why
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    async def _until_opened(self) -> None:
        """Wait until it was released.

        Raises:
            InfrastructureError: the sandbox did not start it.
        """
        await asyncio.wrap_future(self._opened)

    def _run(self, open_box: Callable[[Program], Box]) -> None:
        """Run it from its start to its end, in the calling thread. What comes of it is in
        `_result`.

        Raises:
            InfrastructureError: processes are left. The result is known before that.
        """
        if self._stop is not None:
            self._end(InfrastructureError("the program was stopped before it started"))
            return
        try:
            box = open_box(self._program)
        except BaseException as e:  # noqa: BLE001 - raised where the result is asked for
            self._end(e)
            return
        try:
            self._end(self._live(box))
        except BaseException as e:  # noqa: BLE001
            self._end(e)
        finally:
            box.close()

    def _never_started(self) -> None:
        """Set the result of a program whose `_run` is not called."""
        self._end(InfrastructureError("the sandbox was closed before the program started"))

    def _end(self, outcome: ProgramResult | BaseException) -> None:
        with self._lock:
            os.close(self._wake)
            self._wake = -1
            if isinstance(outcome, BaseException):
                self._result.set_exception(outcome)
                if not self._opened.done():
                    self._opened.set_exception(outcome)
            else:
                self._result.set_result(outcome)
            self._tell_reader()
            self._input.clear()
            self._sent(self._unsent)

    def _tell_reader(self) -> None:
        if self._reader is not None:
            loop, came = self._reader
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(_resolve, came)

    def _sent(self, size: int) -> None:
        """Count bytes that reached its standard input, or never will. The caller holds the lock."""
        self._unsent -= size
        still = []
        for limit, loop, drained in self._drains:
            if self._unsent > limit:
                still.append((limit, loop, drained))
                continue
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(_resolve, drained)
        self._drains = still

    def _live(self, box: Box) -> ProgramResult:
        self._box = box
        with self._lock:
            self._unsent += len(box.preamble)
        self._opened.set_result(None)
        pump = _Pump(self, box)
        ended_by = pump.until_end()
        if ended_by is not None:
            box.kill()
            pump.drain()
        finish = box.finish(ended_by, bytes(pump.stderr))
        ended_by = ended_by or finish.ended_by
        if ended_by == "stopped":
            raise InfrastructureError("the program was stopped")
        return ProgramResult(
            status=_status(ended_by, finish, self._program.limits),
            exit=finish.exit if ended_by is None else None,
            stdout=bytes(self._out),
            stderr=bytes(pump.stderr),
            truncated=tuple(pump.truncated),
            usage=finish.usage,
        )

    def _take_input(self) -> tuple[bytes, bool]:
        """Return the next piece for standard input, and whether it ends after it. For the
        thread.
        """
        with self._lock:
            return (
                self._input.popleft() if self._input else b""
            ), self._input_ends and not self._input

    def _count_sent(self, size: int) -> None:
        """Count bytes that reached its standard input. For the thread."""
        with self._lock:
            self._sent(size)

    def _refuse_input(self) -> None:
        """Drop what waits for standard input, and what comes, because the program closed it. For
        the thread.
        """
        with self._lock:
            self._input_refused = True
            self._input.clear()
            self._sent(self._unsent)

    def _take_stop(self) -> Literal["closed", "stopped"] | None:
        """Return whether to kill it. For the thread."""
        with self._lock, contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        return self._stop

    def _unread(self) -> int:
        """Return how many bytes of standard output wait. For the thread."""
        with self._lock:
            return len(self._out)

    def memory_kills(self) -> int:
        """Return how often the kernel has killed a process of it for memory so far; 0 where nothing
        counts it.
        """
        box = self._box
        return 0 if box is None else box.memory_kills()

    def _give_output(self, data: bytes) -> None:
        """Add to standard output. For the thread."""
        with self._lock:
            self._out += data
            self._tell_reader()


def _resolve(came: asyncio.Future[None]) -> None:
    if not came.done():
        came.set_result(None)


class _Pump:
    """Moves the three standard streams until the program ends or a limit is reached."""

    def __init__(self, running: RunningProgram, box: Box) -> None:
        self.stderr = bytearray()
        self.truncated: list[str] = []
        self._running, self._box, self._pending = running, box, memoryview(box.preamble)
        self._input_ends = False
        limits = running._program.limits
        self._deadline = box.began + limits.seconds
        self._room = {"stdout": limits.output, "stderr": limits.output}
        self._open = {box.stdout: "stdout", box.stderr: "stderr"}
        self._poll = select.poll()
        for descriptor in (*self._open, running._wake, box.ended):
            self._poll.register(descriptor, select.POLLIN)
        for descriptor in (*self._open, box.stdin):
            os.set_blocking(descriptor, False)
        self._writes = False

    def until_end(self) -> EndedBy | None:
        """Move data until the end; return why the program has to be killed, or ``None`` if it ended
        by itself.
        """
        self._write()
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            ready = {descriptor for descriptor, _ in self._poll.poll(ceil(left * 1000))}
            for descriptor in ready & self._open.keys():
                self._read(descriptor)
            if self.truncated:
                return "output"
            if self._box.ended in ready:
                self.drain()
                return "output" if self.truncated else None
            if self._running._wake in ready and (stop := self._running._take_stop()):
                return stop
            if self._box.stdin >= 0:
                self._write()

    def drain(self) -> None:
        """Take what is in the pipes after the end, up to the limit."""
        for descriptor in tuple(self._open):
            while descriptor in self._open and self._read(descriptor):
                pass

    def _read(self, descriptor: int) -> bool:
        name = self._open[descriptor]
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        unread = self._running._program.unread
        room = (
            self._room[name]
            if name == "stderr" or unread is None
            else max(0, unread - self._running._unread())
        )
        kept = data[:room]
        self._room[name] -= len(kept)
        if name == "stderr":
            self.stderr += kept
        elif kept:
            self._running._give_output(kept)
        if len(data) > len(kept):
            self.truncated.append(name)
        if not data or len(data) > len(kept):
            del self._open[descriptor]
            self._poll.unregister(descriptor)
        return True

    def _write(self) -> None:
        """Write until the pipe is full or nothing is left."""
        full = False
        try:
            while not full:
                if not self._pending and not self._input_ends:
                    data, self._input_ends = self._running._take_input()
                    self._pending = memoryview(data)
                if not self._pending:
                    break
                written = os.write(self._box.stdin, self._pending[:CHUNK])
                self._pending = self._pending[written:]
                self._running._count_sent(written)
        except BlockingIOError:
            full = True
        except OSError:  # the program closed its standard input
            self._pending, self._input_ends = memoryview(b""), True
            self._running._refuse_input()
        if full != self._writes:
            self._writes = full
            if full:
                self._poll.register(self._box.stdin, select.POLLOUT)
            else:
                self._poll.unregister(self._box.stdin)
        if self._input_ends and not self._pending:
            self._box.end_input()


def _status(ended_by: EndedBy | None, finish: Finish, limits: ProgramLimits) -> Status:
    """Return the limit that came first; memory comes before time, because a program may wait for a
    child that was killed.
    """
    if ended_by == "output":
        return "output"
    if finish.out_of_memory:
        return "memory"
    if ended_by == "closed":
        return "closed"
    # The kernel counts ticks for the limit and time for the sum, which on a loaded machine is up to
    # 15 % less.
    by_cpu_limit = finish.exit in (128 + signal.SIGKILL, 128 + signal.SIGXCPU) and (
        finish.usage.cpu_seconds >= 0.75 * limits.cpu_seconds
    )
    if ended_by == "timeout" or by_cpu_limit:
        return "timeout"
    return "ok" if finish.exit == 0 else "failed"


class Programs:
    """The running programs of a service: at most *slots* at one time, each in a thread, and those
    beside them.
    """

    def __init__(self, slots: int, open_box: Callable[[Program], Box]) -> None:
        self._open_box = open_box
        self._slots = ThreadPoolExecutor(slots, thread_name_prefix="sandbox")
        self._beside = ThreadPoolExecutor(BESIDE, thread_name_prefix="sandbox-beside")
        self._jobs: dict[RunningProgram, Future[None]] = {}
        self._left: BaseException | None = None

    async def run(self, program: Program) -> ProgramResult:
        """Start *program* as soon as there is a slot, and wait for its end; a cancelled one is
        killed first.
        """
        running = self._launch(program, self._slots)
        try:
            return await running.wait()
        finally:
            await self._end(running)

    @contextlib.asynccontextmanager
    async def start(
        self, program: Program, beside: RunningProgram | None
    ) -> AsyncIterator[RunningProgram]:
        """Start *program* as soon as there is a slot, or at once in the slot of *beside*; kill it
        at the end.
        """
        running = self._launch(program, self._slots if beside is None else self._beside)
        try:
            await running._until_opened()
            yield running
            await running.close()
        finally:
            await self._end(running)

    async def close(self) -> None:
        """Stop all, those that wait too, and wait for their ends."""
        for running in tuple(self._jobs):
            running._kill("stopped")
        for executor in (self._slots, self._beside):
            await asyncio.to_thread(executor.shutdown, cancel_futures=True)

    def _launch(self, program: Program, executor: ThreadPoolExecutor) -> RunningProgram:
        left, self._left = self._left, None
        if left is not None:
            raise InfrastructureError(f"an earlier program was not cleaned up: {left}") from left
        try:
            running = RunningProgram(program)
        except OSError as e:
            raise InfrastructureError(f"the host has no descriptor for a program: {e}") from e
        try:
            self._jobs[running] = job = executor.submit(running._run, self._open_box)
        except RuntimeError:
            running._never_started()
            raise UsageError("the sandbox is closed") from None
        job.add_done_callback(lambda job: self._done(running, job))
        return running

    def _done(self, running: RunningProgram, job: Future[None]) -> None:
        if job.cancelled():
            running._never_started()
        else:
            self._left = job.exception() or self._left

    async def _end(self, running: RunningProgram) -> None:
        """End it if it runs. A program that has ended is cleaned up in the background."""
        job = self._jobs.pop(running)
        if not running._result.done():
            running._kill("closed")
            job.cancel()
            await asyncio.wait([asyncio.wrap_future(job)])
