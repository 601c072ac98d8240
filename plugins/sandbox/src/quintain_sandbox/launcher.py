"""Starting programs through a small process of its own, which `launcher_main` is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quintain import InfrastructureError

from .launcher_main import KILL, LAST, MORE, receive_message

PER_MESSAGE = 200
"""Descriptors of one message; the kernel takes 253."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended: exit status (minus n after signal n), real user, CPU seconds and the
    peak of the largest.
    """

    status: int
    user: int
    cpu_seconds: float
    memory: int


class LaunchedProcess:
    """A process that the launcher started.

    Attributes:
        ended: descriptor that is readable as soon as it has ended, or the launcher died.
    """

    def __init__(self, handle: int, ended: int) -> None:
        self._handle, self.ended = handle, ended

    def kill(self) -> None:
        """Send SIGKILL; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def alive(self) -> bool:
        """Return whether it runs."""
        try:
            signal.pidfd_send_signal(self._handle, 0)
        except ProcessLookupError:
            return False
        return True

    def wait(self) -> Exit | None:
        """Wait for its end; ``None`` if the launcher died."""
        report = os.read(self.ended, 4096)
        return Exit(**json.loads(report)) if report else None

    def close(self) -> None:
        """Release the descriptors."""
        os.close(self._handle)
        os.close(self.ended)


class Launcher:
    """The process, started when it is first needed and again after it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def launch(
        self,
        argv: Sequence[str],
        descriptors: Sequence[int],
        *,
        limits: Mapping[str, int],
        groups: Sequence[Path] = (),
        user: int | None = None,
    ) -> LaunchedProcess:
        """Start *argv* (an absolute path first) in a session of its own, with an empty environment.

        Empty, it stands for `confine` in a fork of the launcher, which starts a program without
        namespaces.

        Args:
            descriptors: what it inherits as 0, 1, 2 and so on; at least three.
            limits: hard and soft limit by name, as ``{"NOFILE": 64}``.
            groups: files of control groups to which it writes itself.
            user: user and group id, without further groups; ``None`` keeps the present ones.

        Raises:
            InfrastructureError: the launcher died.
        """
        request = {
            "argv": list(argv),
            "limits": dict(limits),
            "groups": [str(g) for g in groups],
            "user": user,
        }
        ended, end = os.pipe2(os.O_CLOEXEC)
        try:
            body = in_memory(json.dumps(request).encode())
            try:
                handle = self._ask([body, end, *descriptors])
            finally:
                os.close(body)
        except BaseException:
            os.close(ended)
            raise
        finally:
            os.close(end)
        return LaunchedProcess(handle, ended)

    def _ask(self, descriptors: Sequence[int]) -> int:
        with self._lock:
            try:
                control = self._sent(descriptors)
                answer, handles = receive_message(control)
            except OSError as e:
                self._stop()
                raise InfrastructureError(f"the launcher of the sandbox died: {e}") from e
            if not answer:
                self._stop()
                raise InfrastructureError("the launcher of the sandbox died")
            if not handles:
                socket.send_fds(control, [KILL + answer], [])
                raise InfrastructureError(
                    "the host has no descriptor for a program that was started"
                )
            return handles[0]

    def _sent(self, descriptors: Sequence[int]) -> socket.socket:
        """Send a request to the launcher; to a new one if there is none or it has died."""
        if self._socket is not None:
            try:
                return _send(self._socket, descriptors)
            except ConnectionError:
                self._stop()
        return _send(self._start(), descriptors)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.pidfd_open(os.getpid())
        with theirs:
            script = Path(__file__).with_name("launcher_main.py")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), str(theirs.fileno()), str(parent)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={}, cwd="/",
                pass_fds=[theirs.fileno(), parent], start_new_session=True,
            )  # fmt: skip
        os.close(parent)
        self._socket = ours
        return ours

    def _stop(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket = self._process = None

    def close(self) -> None:
        """End the process, and with it what it started."""
        with self._lock:
            self._stop()


def _send(control: socket.socket, descriptors: Sequence[int]) -> socket.socket:
    while len(descriptors) > PER_MESSAGE:
        socket.send_fds(control, [MORE], descriptors[:PER_MESSAGE])
        descriptors = descriptors[PER_MESSAGE:]
    socket.send_fds(control, [LAST], descriptors)
    return control


def in_memory(data: bytes) -> int:
    """Return a descriptor of a file in memory, at its start."""
    descriptor = os.memfd_create("quintain", os.MFD_CLOEXEC)
    try:
        write_all(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write *data* in as many calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
