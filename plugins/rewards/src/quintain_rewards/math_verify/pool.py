"""Worker processes that are killed at the limit. Synchronous and thread-safe; asyncio runs it in
threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from quintain.errors import InfrastructureError

from .server import LARGEST, LENGTH

START_SECONDS = 120.0
"""Longest start of the fork server: it imports sympy, on a machine that may be busy."""


class Overrun(Exception):
    """A request was not answered within its limit; *cpu* is what the worker used, in seconds, if
    known.
    """

    def __init__(self, cpu: float | None) -> None:
        super().__init__(cpu)
        self.cpu = cpu


class ForkedPool:
    """Children of a fork server, each with one request at a time.

    Args:
        size: children at most; further requests wait, and their clock starts when a child gets
            them.
        memory: limit on the address space of a child, MiB.
        recycle: requests after which a child is replaced.
        cpu_seconds: limit of CPU time on one request, a second line behind the parent's clock.
    """

    def __init__(
        self, *, size: int, memory: int, recycle: int = 2000, cpu_seconds: float = 60.0
    ) -> None:
        self.size, self.memory, self.recycle, self.cpu_seconds = size, memory, recycle, cpu_seconds
        self._places = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._server: _Server | None = None

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Return the reply of a child.

        Raises:
            Overrun: none came within *timeout* seconds; the child was killed.
            InfrastructureError: the child died, or the fork server does not start.
        """
        with self._places:
            child = self._take()
            try:
                reply = child.ask(request, timeout)
            except BaseException:
                self._drop(child)
                raise
            if child.requests >= self.recycle:
                self._drop(child)
            else:
                with self._lock:
                    self._idle.append(child)
            return reply

    def close(self) -> None:
        """Kill the children and the server; the next request starts them again."""
        with self._lock:
            for child in self._all:
                child.kill()
            self._all.clear()
            self._idle.clear()
            if self._server is not None:
                self._server.close()
                self._server = None

    def abandon(self) -> None:
        """Close the descriptors of a parent process after a fork, without any effect on its
        children.
        """
        for child in self._all:
            child.channel.close()
        if self._server is not None:
            self._server.channel.close()

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            try:
                if self._server is None:
                    self._server = _Server(self.memory, self.cpu_seconds)
                child = self._server.fork()
            except (OSError, EOFError) as e:
                if self._server is not None:
                    self._server.close()
                    self._server = None
                raise InfrastructureError(
                    f"math_equal: the fork server of {sys.executable} ended: {e}"
                ) from e
            self._all.add(child)
            return child

    def _drop(self, child: _Child) -> None:
        child.kill()
        with self._lock:
            self._all.discard(child)
            if self._server is not None and self._server is child.server:
                self._server.reap(child.pid)


class _Server:
    """The fork server, seen from the parent."""

    def __init__(self, memory: int, cpu_seconds: float) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = f"{theirs.fileno()}, {memory << 20}, {cpu_seconds}"
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from quintain_rewards.math_verify.server import "
            f"serve; serve({arguments})"
        )
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(self.channel.close)  # where the process does not start
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            stack.pop_all()
        self._ready = False

    def fork(self) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.channel, [b"fork"], [theirs.fileno()])
            self.channel.settimeout(None if self._ready else START_SECONDS)
            message = self.channel.recv(64)
        except OSError:
            ours.close()
            raise
        if not message:
            ours.close()
            raise EOFError(
                "it cannot import sympy and math-verify, or was killed; run `python -c 'import "
                "math_verify'`"
            )
        self._ready = True
        return _Child(self, int(message), ours)

    def reap(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self.channel.send(f"reap {pid}".encode("ascii"))
            self.channel.recv(64)

    def close(self) -> None:
        self.channel.close()  # the server ends itself and its children
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class _Child:
    """One child, seen from the parent."""

    def __init__(self, server: _Server, pid: int, channel: socket.socket) -> None:
        self.server, self.pid, self.channel = server, pid, channel
        self.requests = 0
        self._killed = False
        channel.setblocking(False)

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        self.requests += 1
        data = json.dumps(request).encode("utf-8")
        used = _cpu(self.pid)
        deadline = time.monotonic() + timeout
        try:
            self.channel.setblocking(True)
            self.channel.sendall(LENGTH.pack(len(data)) + data)
            self.channel.setblocking(False)
            return self._reply(deadline, used)
        except (OSError, ValueError) as e:
            raise InfrastructureError(f"math_equal: a worker died: {type(e).__name__}: {e}") from e

    def _reply(self, deadline: float, used: float | None) -> dict[str, Any]:
        buffer = bytearray()
        waiting = select.poll()
        waiting.register(self.channel, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if not waiting.poll(max(0.0, left) * 1000):
                now = _cpu(self.pid)
                self.kill()
                raise Overrun(None if used is None or now is None else now - used)
            chunk = self.channel.recv(1 << 16)
            if not chunk:
                raise OSError("it ended without a reply")
            buffer += chunk
            if len(buffer) < LENGTH.size:
                continue
            n = LENGTH.unpack_from(buffer)[0]
            if n > LARGEST:
                raise ValueError(f"a reply of {n} bytes")
            if len(buffer) >= LENGTH.size + n:
                reply = json.loads(bytes(buffer[LENGTH.size : LENGTH.size + n]))
                if not isinstance(reply, dict):
                    raise ValueError("a reply that is no object")
                return reply

    def kill(self) -> None:
        if not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                # the server has not reaped it, so the id is still its own
                os.kill(self.pid, signal.SIGKILL)
            self.channel.close()


def _cpu(pid: int) -> float | None:
    """Return the CPU seconds that a process has used; ``None`` where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
