"""The `workers` service: killable processes for code that may hang or crash (parsers, checkers).

Processes bound hangs and crashes; they are no boundary against hostile code, which belongs in a
sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from quintain import InfrastructureError, Service
from quintain.errors import UsageError

from .child import End, goes_before_the_run
from .worker import LENGTH, raised, unpacked

LARGEST = 1 << 30
"""Longest answer taken, bytes: more is a worker gone wrong."""
MARK = "QUINTAIN_WORKER"
"""The variable in the environment of a worker and of all that it starts, by which they are found
and killed.
"""


class _Line:
    """The calls of one event loop: how many run, and those that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop, self.busy = loop, 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class WorkerPool(Service):
    """A few fresh interpreters, started when first needed, that run one call each at a time.

    Calls wait in line, first come first served, and the clock of a call starts when a worker takes
    it up: neither waiting nor importing the function's module counts. Because a worker is a fresh
    interpreter, nothing is forked from a process that has torch or threads in it. The hash seed is
    fixed, so that the order of sets is the same in every worker and every run.

    Outside a run (a test, a notebook) it also works without ``async with``, and across event loops,
    though not from two at once.

    Attributes:
        size: processes at most.
        recycle: calls after which a process is replaced, which bounds what a leaking library can
            hold on to.
        memory: limit on the address space of each process, MiB; ``None`` is no limit.
        start_seconds: how long a process may take to start, or to import the module of a function.
    """

    def __init__(
        self,
        *,
        size: int = 2,
        recycle: int = 2000,
        memory: int | None = None,
        start_seconds: float = 60.0,
    ) -> None:
        for name, value in (("size", size), ("recycle", recycle), ("memory", memory or 1)):
            if value < 1:
                raise UsageError(f"workers.{name} is {value}; expected at least 1")
        self.size = size
        self.recycle = recycle
        self.memory = memory
        self.start_seconds = start_seconds
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []
        self._line = _Line()
        self._end = weakref.finalize(self, _kill_all, self._all)

    async def __aenter__(self) -> Self:
        try:
            await self.call("operator:add", 1, 1, timeout=self.start_seconds)
        except (InfrastructureError, TimeoutError, OSError) as e:
            self.close()
            raise InfrastructureError(
                f"worker processes of {sys.executable} do not start: {e}"
            ) from e
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker by SIGKILL; a later call starts new ones."""
        self._idle.clear()
        _kill_all(self._all)

    async def call(
        self, function: Callable[..., Any] | str, *args: Any, timeout: float = 5.0
    ) -> Any:
        """Run an importable *function* (or its ``"module:name"``) with picklable arguments in a
        worker.

        The result is plain data: numbers, text, lists, tuples, dicts, sets. Nothing else crosses,
        because reading it would run the function's code in this process.

        Args:
            timeout: seconds from when a worker starts on it, on the worker's own clock; as many to
                send the arguments.

        Raises:
            TimeoutError: it took longer; the worker was killed.
            InfrastructureError: the worker died (a crash of the interpreter, ``os._exit``, the
                kernel when memory ran out), or the function raised `MemoryError`.
            UsageError: the function cannot be found from a fresh interpreter, the arguments cannot
                be pickled, or calls of another event loop run.
            TypeError: the result is not plain data.
            Exception: what the function itself raised, with its traceback as a note; a
                `RuntimeError` if this process has not imported its class.
        """
        target = target_of(function)
        try:
            arguments = pickle.dumps(args)
        except Exception as e:
            raise UsageError(
                f"the arguments of {function!r} cannot be sent to a worker: {e}"
            ) from e
        line = self._line_of(asyncio.get_running_loop())
        await self._turn(line)
        try:
            worker = self._take()
            try:
                value, error = await worker.call(target, arguments, timeout, self.start_seconds)
            except BaseException:
                self._drop(worker)
                raise
            self._give_back(worker)
        finally:
            self._next(line)
        if isinstance(error, MemoryError):
            limit = f", which may have {self.memory} MiB" if self.memory else ""
            raise InfrastructureError(
                f"{_shown(target)} ran out of memory in a worker{limit}"
            ) from error
        if error is not None:
            raise error
        return value

    async def healthy(
        self,
        function: Callable[..., Any] | str = "time:monotonic",
        *args: Any,
        timeout: float = 5.0,
    ) -> bool:
        """Return whether a control call ends: by default a trivial one; give a checker and a case
        that it must manage.

        A call that timed out while this says yes was exhausted by its input, so the time-out is the
        policy's fault. What else the control raises is raised here.
        """
        try:
            await self.call(function, *args, timeout=timeout)
        except (TimeoutError, InfrastructureError):
            return False
        return True

    def _line_of(self, loop: asyncio.AbstractEventLoop) -> _Line:
        """Return the line of *loop*, a new one if the last call came from another loop."""
        line = self._line
        if line.loop is not loop:
            if line.busy and line.loop is not None and not line.loop.is_closed():
                raise UsageError(
                    "calls of another event loop run in this worker pool; make one pool for each "
                    "loop"
                )
            if line.busy:  # the loop was closed under its calls, which may still run
                self.close()
            line = self._line = _Line(loop)
        return line

    async def _turn(self, line: _Line) -> None:
        """Wait in line until fewer than `size` calls run."""
        if line.busy < self.size and not line.waiting:
            line.busy += 1
            return
        place = asyncio.get_running_loop().create_future()
        line.waiting.append(place)
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():
                self._next(line)  # it was our turn already; pass it on
            raise

    def _next(self, line: _Line) -> None:
        """Give the place of a call that ended to the first in line."""
        while line.waiting:
            place = line.waiting.popleft()
            if not place.done() and not place.get_loop().is_closed():
                place.set_result(None)
                return
        line.busy -= 1

    def _take(self) -> _Process:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._drop(worker)
        worker = _Process(self.memory)
        self._all.add(worker)
        return worker

    def _give_back(self, worker: _Process) -> None:
        if worker.calls >= self.recycle or worker not in self._all:
            self._drop(worker)
        else:
            self._idle.append(worker)

    def _drop(self, worker: _Process) -> None:
        worker.kill()
        self._all.discard(worker)


def _kill_all(workers: set[_Process]) -> None:
    for worker in tuple(workers):
        worker.kill()
    workers.clear()


def target_of(function: Callable[..., Any] | str) -> str | bytes:
    """Return how a fresh interpreter finds *function*: ``"module:name"``, or a pickle (partials,
    bound methods).

    Raises:
        UsageError: it cannot be found (a lambda, a nested function, one defined in a script).
    """
    if isinstance(function, str):
        module, _, name = function.partition(":")
        if not module or not name:
            raise UsageError(f"{function!r} does not name a function; expected 'module:name'")
        return function
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", None) or ""
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None:
            raise UsageError(
                f"{name!r} is defined in a script, where a worker cannot find it; move it into a "
                f"module"
            )
        module = spec.name
    if "<" in name:
        raise UsageError(
            f"{name!r} is a lambda or nested function; a worker imports: define it at module level"
        )
    if name and module and _found(module, name) is function:
        return f"{module}:{name}"
    try:
        return pickle.dumps(function)
    except Exception as e:
        raise UsageError(
            f"{function!r} cannot be sent to a worker: {e}; give an importable function"
        ) from e


def _found(module: str, name: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


class _Process:
    """One worker process, seen from the parent."""

    def __init__(self, memory: int | None) -> None:
        self.calls = 0
        self._serial = 0
        self._loaded: set[str | bytes] = set()
        self._buffer = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._mark = f"{MARK}={os.getpid()}-{secrets.token_hex(8)}"
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _program(theirs.fileno(), memory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONHASHSEED": "0", MARK: self._mark.partition("=")[2]},
                start_new_session=True,
            )
        goes_before_the_run(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not _dying(self._process.pid)

    async def call(
        self, target: str | bytes, arguments: bytes, timeout: float, start_seconds: float
    ) -> tuple[Any, Exception | None]:
        """Return the value, or what the function raised."""
        if target not in self._loaded:
            try:
                _, error = await self._ask(("load", target), start_seconds)
            except TimeoutError as e:
                raise InfrastructureError(
                    f"a worker did not import {target!r} within {start_seconds:g} s"
                ) from e
            if error is not None:
                what = type(error).__name__
                raise UsageError(
                    f"{_shown(target)} cannot be loaded in a worker: {what}: {error}"
                ) from error
            self._loaded.add(target)
        self.calls += 1
        cpu = timeout * (os.cpu_count() or 1)  # as many threads as there are cores may burn it
        try:
            return await self._ask(("call", target, arguments, cpu), timeout)
        except TimeoutError as e:
            raise TimeoutError(
                f"{_shown(target)} took longer than {timeout:g} s in a worker"
            ) from e

    async def _ask(self, request: tuple[Any, ...], timeout: float) -> tuple[Any, Exception | None]:
        self._serial += 1
        kind, *rest = request
        payload = pickle.dumps((kind, self._serial, *rest))
        try:
            async with asyncio.timeout(timeout if math.isfinite(timeout) else None):
                await asyncio.get_running_loop().sock_sendall(
                    self._socket, LENGTH.pack(len(payload)) + payload
                )
            frame = await self._frame(timeout)
            number, seconds, ok, packed = unpacked(frame)
            value = unpacked(packed)
            error = None if ok else raised(value)
        except TimeoutError:
            raise
        except Exception as e:
            raise self._death(e) from e
        if number != self._serial:
            raise InfrastructureError("a worker answered out of turn: the function may have forked")
        if seconds > timeout:  # this process was too busy to notice in time
            raise TimeoutError
        return (value, None) if error is None else (None, error)

    async def _frame(self, timeout: float) -> bytes:
        """Return the next frame; whatever has arrived counts, however late this process gets to
        look.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            frame = self._parsed()
            if frame is not None:
                return frame
            if not await _readable(self._socket, deadline - loop.time()):
                if not self.alive:
                    raise EOFError
                raise TimeoutError
            self._fill()

    def _parsed(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        n = LENGTH.unpack_from(self._buffer)[0]
        if n > LARGEST:
            raise ValueError(f"an answer of {n} bytes, more than the {LARGEST} allowed")
        if len(self._buffer) < LENGTH.size + n:
            return None
        frame = bytes(self._buffer[LENGTH.size : LENGTH.size + n])
        del self._buffer[: LENGTH.size + n]
        return frame

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        self._buffer += data

    def _death(self, cause: Exception) -> Exception:
        """Return what to say of a worker whose connection broke."""
        if not isinstance(cause, (EOFError, OSError)):
            return InfrastructureError(f"a worker answered nonsense: {cause}")
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return InfrastructureError("a worker closed its connection")
        if code == -signal.SIGXCPU:
            return TimeoutError()
        return InfrastructureError(f"a worker {End(code=code).how}{self._last_words()}")

    def _last_words(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        text = (
            os.pread(self._errors.fileno(), 2000, max(0, size - 2000))
            .decode("utf-8", "replace")
            .strip("\0 \n")
        )
        return f":\n{text}" if text else ""

    def kill(self) -> None:
        """End it and all that it started by SIGKILL."""
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
            self._process.wait()
        for pid in _marked(self._mark.encode()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._socket.close()
        self._errors.close()


def _marked(mark: bytes) -> Iterator[int]:
    """Yield the processes with *mark* in their environment: those of a worker, also in sessions of
    their own.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                yield int(folder.name)


def _program(channel: int, memory: int | None) -> str:
    """Return what the fresh interpreter runs; it finds modules where this one does."""
    size = None if memory is None else memory << 20
    return (
        f"import sys; sys.path[:] = {sys.path!r}; from quintain_scale.workers.worker import serve; "
        f"serve({channel}, {size})"
    )


def _shown(target: str | bytes) -> str:
    return target if isinstance(target, str) else "a call"


async def _readable(sock: socket.socket, seconds: float) -> bool:
    """Wait until *sock* can be read; ``False`` after *seconds*. Data that is there always wins over
    the clock.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()

    def settle(answer: bool) -> None:
        if not ready.done():
            ready.set_result(answer)

    loop.add_reader(sock, settle, True)
    clock = loop.call_later(max(0.0, seconds), settle, False) if math.isfinite(seconds) else None
    try:
        return await ready
    finally:
        loop.remove_reader(sock)
        if clock is not None:
            clock.cancel()


def _dying(pid: int) -> bool:
    """Return whether the kernel has begun to take the process apart: until its last thread is gone
    it cannot be waited for.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False  # no /proc here, or it is gone: then `poll` says so
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
