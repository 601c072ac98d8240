"""One container of a sandbox: it waits on its standard input, runs one program, and ends.

The first process is a shell that reads one line, the script of `script`. The shell writes the
files, says that it is ready, starts the program with the rest of the standard input, and says how
it ended; the engine itself takes 50 ms and more to say so. A program can reach that shell and speak
in its name, which gives it nothing: it may choose its exit status anyway, and the container ends
with what the shell says. Limits, memory kills and time are the host's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shlex
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from quintain import InfrastructureError

from .cgroups import Counters
from .launcher import write_all
from .opened import Box, EndedBy, Finish, mover_of
from .program import HOME, Program, Usage

if TYPE_CHECKING:
    from .engine import ContainerEngine  # needs the extra

WAITER = ["/bin/sh", "-c", f'mkdir {HOME} && cd {HOME} && IFS= read -r q && eval "$q"']
"""The first process of a container."""
START_SECONDS = 60.0
"""How long a container may take to get ready on a loaded machine."""
DIE_SECONDS = 5.0
"""How long processes may take to end after SIGKILL."""
CHUNK = 1 << 16
STDOUT, STDERR = 1, 2
REPORT = 512
"""Most bytes of what the shell says at the end."""
PIECE = 1 << 20
"""Bytes that dd moves at one time."""
FIRST_WORDS = {
    "-": "cannot write the files into the box",
    "?": "there is no such command in the image",
}


@dataclass(frozen=True)
class Waiting:
    """A started container whose shell waits for its script.

    Attributes:
        user: user id of its processes, as the engine was asked.
        process: pidfd of its first process where the engine runs on this kernel; -1 elsewhere.
        host_user: user id of its processes on this kernel.
    """

    id: str
    user: int
    connection: socket.socket
    process: int = -1
    host_user: int | None = None
    counters: Counters | None = None

    @property
    def alive(self) -> bool:
        """Whether its connection is open and silent, as it is until it gets its script."""
        return not _readable(self.connection.fileno(), 0)

    def close(self) -> None:
        """Close the descriptors; the container itself stays."""
        self.connection.close()
        if self.process >= 0:
            os.close(self.process)


def started(engine: ContainerEngine, container: str, user: int) -> Waiting:
    """Attach to a created container and start it."""
    connection = engine.attach(container)
    try:
        engine.start(container)
        return _on_this_kernel(
            int(engine.inspect(container)["Pid"]), Waiting(container, user, connection)
        )
    except BaseException:
        connection.close()
        raise


def _on_this_kernel(pid: int, waiting: Waiting) -> Waiting:
    """Return *waiting* with handles of its first process, if *pid* is a process here and belongs to
    it.
    """
    if pid <= 0:
        return waiting
    handle = -1
    try:
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, 0)  # may be refused, where the trainer is not root
        if waiting.id in Path(f"/proc/{pid}/cgroup").read_text():
            status = Path(f"/proc/{pid}/status").read_text()
            user = int(re.search(r"^Uid:\t\d+\t(\d+)", status, re.M)[1])  # type: ignore[index]
            return Waiting(
                waiting.id, waiting.user, waiting.connection, handle, user, Counters.of(pid)
            )
    except OSError:
        # the engine is elsewhere, or the trainer may not signal its processes: the engine is asked
        # instead
        pass
    if handle >= 0:
        os.close(handle)
    return waiting


class DockerBox(Box):
    """A program in a container.

    Args:
        give_back: called once with the container, when its processes are dead or the engine is
            asked to end them.

    Raises:
        InfrastructureError: the container did not start the program.
    """

    def __init__(
        self,
        engine: ContainerEngine,
        waiting: Waiting,
        program: Program,
        give_back: Callable[[Waiting], None],
    ) -> None:
        self._engine, self._waiting, self._program = engine, waiting, program
        self._marker = secrets.token_hex(16).encode()
        self._usage = Usage(seconds=0.0, cpu_seconds=0.0, memory=0)
        self._out_of_memory = False
        self._killed = False
        self._frames = Frames(waiting.connection, self._marker)
        self.stdin = waiting.connection.fileno()
        self._stack = contextlib.ExitStack()
        self._stack.callback(give_back, waiting)
        try:
            self._release()
        except BaseException:
            self._stack.close()
            raise

    def _release(self) -> None:
        self._waiting.connection.setblocking(False)
        try:
            word = self._frames.exchange(script(self._program, self._marker.decode()))
        except OSError as e:
            raise InfrastructureError(f"the container engine closed the connection: {e}") from e
        if word != "+":
            failure = FIRST_WORDS.get(word, "the container ended before it started")
            raise InfrastructureError(f"docker did not run {self._program.argv[0]!r}: {failure}")
        self.began = time.monotonic()
        mover = mover_of(self, self._stack, "docker streams", self._move)
        self._stack.callback(self._disconnect)
        mover.start()

    def _move(self, stdout: int, stderr: int) -> None:
        """Move frames into pipes until the program or the connection ends."""
        sinks = {STDOUT: stdout, STDERR: stderr}
        with contextlib.suppress(OSError):  # the box was closed
            for kind, data in self._frames:
                write_all(sinks[kind], data)

    def end_input(self) -> None:
        """Close the sending side of the connection, unless that is done; see `Box.end_input`."""
        if self.stdin >= 0:
            with contextlib.suppress(OSError):  # the connection is gone
                self._waiting.connection.shutdown(socket.SHUT_WR)
        self.stdin = -1

    def kill(self) -> None:
        """End all processes by SIGKILL. The connection is closed first: an engine waits for a
        client that does not read.
        """
        if self._killed:
            return
        self._killed = True
        self._measure()
        self._disconnect()
        if self._waiting.process < 0:
            self._engine.kill(self._waiting.id)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._waiting.process, signal.SIGKILL)

    def finish(self, ended_by: EndedBy | None, stderr: bytes) -> Finish:
        """Wait for the end of the container's processes and return how the program ended; see
        `Box.finish`.
        """
        code = self._frames.exit_code
        seconds = time.monotonic() - self.began
        if ended_by is None:
            self.kill()
        if code is None or ended_by is not None:  # else its processes have ended, or are about to
            if self._waiting.process >= 0 and not _readable(self._waiting.process, DIE_SECONDS):
                raise InfrastructureError(
                    f"processes of a container did not end within {DIE_SECONDS:g} s of SIGKILL"
                )
            seconds = time.monotonic() - self.began
        if self._waiting.counters is None or (code is None and ended_by is None):
            state = self._final_state()
            self._out_of_memory = self._out_of_memory or bool(state["OOMKilled"])
        if code is None and ended_by is None and not self._out_of_memory:
            error_text = stderr[-500:].decode("utf-8", "replace").strip()
            raise InfrastructureError(
                f"docker did not run {self._program.argv[0]!r} to its end: the engine closed the "
                f"connection, or something outside ended the container; {error_text}"
            )
        cpu_seconds = self._usage.cpu_seconds or self._frames.cpu_seconds
        usage = replace(
            self._usage, seconds=seconds, cpu_seconds=cpu_seconds, user=self._waiting.host_user
        )
        return Finish(exit=code, out_of_memory=self._out_of_memory, usage=usage)

    def close(self) -> None:
        """End what still runs and release everything else; see `Box.close`."""
        with contextlib.ExitStack() as stack:
            stack.push(self._stack)
            self.kill()

    def _measure(self) -> None:
        """Read the counters of the control group, which is gone soon after the processes."""
        counters = self._waiting.counters
        if counters is None:
            return
        self._out_of_memory = counters.out_of_memory()
        self._usage = Usage(
            seconds=0.0,
            cpu_seconds=counters.cpu_seconds(),
            memory=counters.peak(),
            refused_forks=counters.refused_forks(),
        )

    def _final_state(self) -> dict[str, object]:
        """Return what the engine says of the container, as soon as it has noticed its end."""
        deadline = time.monotonic() + DIE_SECONDS
        while True:
            state = self._engine.inspect(self._waiting.id)
            if not state["Running"] or time.monotonic() > deadline:
                return dict(state)
            time.sleep(0.02)

    def _disconnect(self) -> None:
        self.stdin = -1
        with contextlib.suppress(OSError):
            self._waiting.connection.shutdown(socket.SHUT_RDWR)


class Frames:
    """The frames of an engine's attach connection: a stream's number, three zeros, the length, the
    data.

    Iterating gives the data up to the two marks of the shell, one in each stream, that follow the
    program's output.

    Attributes:
        exit_code: what the shell says of the program; ``None`` if it did not come to that.
        cpu_seconds: user and system time of the program and the children that it waited for, as the
            shell says.
    """

    def __init__(self, connection: socket.socket, marker: bytes) -> None:
        self.exit_code: int | None = None
        self.cpu_seconds = 0.0
        self._connection, self._marker = connection, marker
        self._raw = bytearray()
        self._held = {STDOUT: bytearray(), STDERR: bytearray()}
        """Of each stream what may be the begin of a mark."""
        self._marked: set[int] = set()

    def exchange(self, data: bytes) -> str:
        """Send the script and the files; the shell's first word, empty if the connection ended.

        Raises:
            InfrastructureError: it says nothing in time.
        """
        deadline = time.monotonic() + START_SECONDS
        pending = memoryview(data)
        buffer = self._held[STDERR]
        while True:
            left = deadline - time.monotonic()
            poll = select.poll()
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if pending else 0))
            events = poll.poll(max(0, ceil(left * 1000)))
            if not events:
                raise InfrastructureError(
                    f"a container did not get ready within {START_SECONDS:g} s"
                )
            if events[0][1] & select.POLLOUT:
                pending = pending[self._connection.send(pending[:PIECE]) :]
            if events[0][1] & ~select.POLLOUT:
                if not self._receive():
                    return ""
                for kind, content in self._whole():
                    self._held[kind] += content
                position = buffer.find(self._marker)
                end = position + len(self._marker)
                if position >= 0 and len(buffer) > end:
                    word = chr(buffer[end])
                    del buffer[: end + 1]
                    return word

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        yield from self._passed()
        while self._marked != {STDOUT, STDERR}:
            if not _readable(self._connection.fileno(), None) or not self._receive():
                break
            for kind, content in self._whole():
                if kind not in self._marked:
                    self._held[kind] += content
            yield from self._passed()
        else:
            return
        for kind, buffer in self._held.items():  # no more marks
            if kind not in self._marked and buffer:
                yield kind, bytes(buffer)

    def _receive(self) -> bool:
        """Read what is there; whether the connection is open."""
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._raw += data
        return bool(data)

    def _whole(self) -> Iterator[tuple[int, bytes]]:
        """Take the whole frames."""
        while len(self._raw) >= 8:
            kind, size = struct.unpack_from(">B3xL", self._raw)
            if len(self._raw) < 8 + size:
                return
            content = bytes(self._raw[8 : 8 + size])
            del self._raw[: 8 + size]
            if kind in self._held:
                yield kind, content

    def _passed(self) -> Iterator[tuple[int, bytes]]:
        """Yield what certainly is output of the program."""
        for kind, buffer in self._held.items():
            if kind in self._marked:
                continue
            position = buffer.find(self._marker)
            if position < 0:
                position = len(buffer) - _overlap(buffer, self._marker)
            elif (
                kind == STDOUT
                or buffer.count(b"\n", position) >= 3
                or len(buffer) > position + REPORT
            ):
                self._marked.add(kind)
                if kind == STDERR:
                    self._read_report(
                        buffer[position + len(self._marker) :].decode("ascii", "replace")
                    )
            if position:
                yield kind, bytes(buffer[:position])
                del buffer[:position]

    def _read_report(self, report: str) -> None:
        """Read the exit status, and two lines of ``times``: of the shell, and of its children."""
        code, _, children, *_ = [*report.split("\n"), "", ""]
        self.exit_code = int(code) if re.fullmatch(r"\d{1,3}", code) else None
        self.cpu_seconds = sum(
            60 * int(m) + float(s) for m, s in re.findall(r"(\d+)m([\d.]+)s", children)
        )


def _overlap(buffer: bytearray, marker: bytes) -> int:
    """Return the length of the longest end of *buffer* that begins *marker*."""
    return next(
        (n for n in range(min(len(buffer), len(marker) - 1), 0, -1) if buffer.endswith(marker[:n])),
        0,
    )


def script(program: Program, marker: str) -> bytes:
    """Return the line for the shell, and the bytes of the files.

    The shell sends its own messages nowhere: they are not the program's.
    """
    say = f"printf %s {marker}"
    steps, data = [], []
    folders = {
        str(parent)
        for name in program.files
        if (parent := PurePosixPath(name).parent) != PurePosixPath()
    }
    if folders:
        steps.append(
            shlex.join(["mkdir", "-p", "--", *(f"./{folder}" for folder in sorted(folders))])
        )
    for name, content in program.files.items():
        path = shlex.quote(f"./{name}")
        steps.append(f": >{path}")
        pieces, rest = divmod(len(content), PIECE)
        for size, count in ((PIECE, pieces), (rest, 1)):
            if size and count:
                steps.append(f"dd bs={size} count={count} iflag=fullblock >>{path}")
        data.append(content)
    argv, seconds = shlex.join(program.argv), ceil(program.limits.cpu_seconds)
    parts = [
        "exec 3>&2 2>/dev/null",
        f"{{ {' && '.join(steps or [':'])}; }} || {{ {say}- >&3; exec sleep 60; }}",
        f"command -v {shlex.quote(program.argv[0])} >/dev/null || {{ {say}'?' >&3; exec sleep 60; "
        f"}}",
        f"{say}+ >&3",
        f"( ulimit -t {seconds}; exec {argv} 2>&3 3>&- )",
        "c=$?",
        say,
        f'{{ printf "%s%d\\n" {marker} "$c"; times; }} >&3',
        "exec sleep 60 >&- 3>&-",  # holds the control group, whose counters the host reads
    ]
    line = "; ".join(parts).encode("utf-8", "surrogateescape")
    if b"\n" not in line and len(line) < 1024:
        return b"\n".join([line, b"".join(data)])
    # A shell reads lines byte by byte; dd is faster for long ones, and takes newlines.
    first = f'q=$(dd bs={len(line)} count=1 iflag=fullblock 2>/dev/null) && eval "$q"\n'
    return b"".join([first.encode(), line, *data])


def _readable(descriptor: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else ceil(seconds * 1000)))
