"""A container of a task: it lives as long as an episode, and takes commands and files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import select
import socket
import struct
import tarfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from quintain import InfrastructureError
from quintain.errors import UsageError

from .build_context import add_file, context_files
from .cgroups import Counters
from .program import WAITER_NAME

if TYPE_CHECKING:
    from .engine import ContainerEngine  # needs the extra

LATE = 5.0
"""Seconds after a command's limit at which it is killed, if it ignores the signal to end."""
GRACE = 10.0
"""Seconds after which the host ends a command whose container does not."""
KILLED = 137
TIMED_OUT = 124
CHUNK = 1 << 16
SETTLE = (
    "timeout -k 1 5 true 2>/dev/null && echo timeout; n=0; while [ $n -lt 200 ]; do for p in /proc/[0-9]*; do "
    # The first process has the command as its arguments, before it has started it.
    "[ $p = /proc/1 ] && continue; "
    f"case \"$(cat $p/cmdline)\" in *{WAITER_NAME[:4]}''{WAITER_NAME[4:]}*) "
    "echo /proc/[0-9]*; exit 0;; esac; done 2>/dev/null; n=$((n + 1)); sleep 0.1; done; exit 1"
)
"""Waits for the container's own command, which its first process starts, and lists all processes."""
READ = 64 << 20
"""Most bytes that are read from a container at one time."""


@dataclass(frozen=True, kw_only=True)
class TaskLimits:
    """Limits on a container as a whole."""

    memory: int = 2 << 30
    """Bytes of memory, without swap."""
    cpus: float = 1.0
    """CPUs, as a quota."""
    processes: int = 1024
    """Processes and threads at one time."""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended.

    Attributes:
        status: ``ok`` is exit status 0, ``failed`` any other, ``timeout`` a command that was ended
            by its limit.
        output: standard output and error as they came, cut in the middle.
        cut: bytes that were left out there.
    """

    status: Literal["ok", "failed", "timeout"]
    exit: int | None
    output: bytes
    cut: int
    seconds: float

    @property
    def text(self) -> str:
        """The output as text, with a line where bytes were left out."""
        text = self.output.decode("utf-8", "replace")
        if not self.cut:
            return text
        half = len(self.output) // 2
        first, last = self.output[:half], self.output[half:]
        return (
            f"{first.decode('utf-8', 'replace')}\n[{self.cut} bytes left out]\n"
            f"{last.decode('utf-8', 'replace')}"
        )


class TaskContainer:
    """Made by `Containers.container`; used by one episode, also by several of its calls at one
    time.

    Attributes:
        id: of the container in the engine.
        image: its name.
        workdir: where commands run.
    """

    def __init__(
        self, engine: ContainerEngine, executor: Executor, container: str, image: str, workdir: str
    ) -> None:
        self._engine, self._executor = engine, executor
        self.id, self.image, self.workdir = container, image, workdir
        self._has_timeout = False
        self._own: frozenset[str] = frozenset()
        """Numbers of the image's own processes, the first one among them."""
        pid = int(engine.inspect(container)["Pid"])
        self._counters: Counters | None = None
        with contextlib.suppress(OSError):  # an engine on another machine
            if container in Path(f"/proc/{pid}/cgroup").read_text():
                self._counters = Counters.of(pid)

    async def run(
        self,
        argv: Sequence[str],
        *,
        seconds: float = 60.0,
        stdin: bytes = b"",
        user: str = "",
        workdir: str = "",
        variables: Mapping[str, str] | None = None,
        output: int = 1 << 20,
    ) -> CommandResult:
        """Run a command; what it starts in the background goes on.

        Args:
            seconds: its time limit.
            stdin: its standard input, which then ends.
            user: of the container, by name or number; empty for that of the image.
            workdir: empty for that of the container.
            output: bytes that are kept of what it prints, from its begin and its end.

        Raises:
            UsageError: *argv* or *seconds* is invalid.
            InfrastructureError: the engine failed, or the container has ended.
        """
        if not argv or any("\0" in word for word in argv) or not 0 < seconds < float("inf"):
            raise UsageError(
                f"argv {list(argv)!r:.80}, seconds {seconds!r}; expected words without NUL and a "
                "positive finite number"
            )
        words = list(argv)
        if self._has_timeout:
            words = ["timeout", "-k", f"{LATE:g}", f"{seconds:g}", *words]
        settings = {
            "user": user,
            "workdir": workdir or self.workdir,
            "environment": dict(variables or {}),
        }
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        command, connection, early = await loop.run_in_executor(
            self._executor, lambda: self._engine.open_command(self.id, words, **settings)
        )
        moved = loop.run_in_executor(
            self._executor, _exchange, connection, early, stdin, seconds + LATE + GRACE, output
        )
        try:
            kept = await asyncio.shield(moved)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # ends the thread; the container is removed
            await asyncio.wait([moved])
            raise
        finally:
            connection.close()
        took = time.monotonic() - began
        if kept.late:
            await self.end_processes()
            exit_status: int | None = None
        else:
            exit_status = await loop.run_in_executor(self._executor, self._exit_status, command)
        ended = kept.late or (
            took >= seconds and (exit_status in (TIMED_OUT, KILLED) or exit_status is None)
        )
        return CommandResult(
            status="timeout" if ended else "ok" if exit_status == 0 else "failed",
            exit=None if ended else exit_status,
            output=bytes(kept.first + kept.last),
            cut=kept.cut,
            seconds=took,
        )

    def _exit_status(self, command: str) -> int | None:
        """Return how a command ended, as soon as the engine has noticed it."""
        for pause in (0.0, 0.01, 0.05, 0.2, 1.0, 3.0):
            time.sleep(pause)
            status = self._engine.exit_status(command)
            if status is not None:
                return status
        state = self._engine.inspect(self.id)
        if not state["Running"]:
            reason = "for memory" if state["OOMKilled"] else f"with status {state['ExitCode']}"
            raise InfrastructureError(f"the container of a task ended {reason}")
        return None

    async def settle(self) -> None:
        """Count what runs now as the image's own: `end_processes` leaves it alone. Done when the
        container starts; do it again when programs of the image have started.
        """
        result = await self.run(["sh", "-c", SETTLE], seconds=60, user="0", workdir="/")
        if result.status != "ok" or "/proc/1" not in result.text.split():
            raise InfrastructureError(f"a container's own command did not start: {result.text}")
        words = result.text.split()
        self._has_timeout = "timeout" in words
        self._own = frozenset(path.removeprefix("/proc/") for path in words)

    async def end_processes(self) -> None:
        """End all processes but the image's own."""
        own = " ".join(sorted(self._own))
        # Three times, for those that are being started meanwhile.
        await self._kill(
            f'for n in 1 2 3; do for p in /proc/[0-9]*; do p="${{p#/proc/}}"; case " {own} $$ " in '
            '*" $p "*) ;; *) kill -9 "$p" 2>/dev/null;; esac; done; done'
        )

    async def _kill(self, script: str) -> None:
        loop = asyncio.get_running_loop()
        _, connection, early = await loop.run_in_executor(
            self._executor,
            lambda: self._engine.open_command(self.id, ["sh", "-c", script], user="0"),
        )
        try:
            await loop.run_in_executor(self._executor, _exchange, connection, early, b"", GRACE, 0)
        finally:
            connection.close()

    async def put(
        self, folder: str, files: Mapping[str, bytes | Path], executable: str = ""
    ) -> None:
        """Write files below *folder*, which is made. A `Path` is a file of this machine, or a
        folder with all that is below it.

        Args:
            executable: path below *folder* of a file that can be run, whatever it is here.

        Raises:
            InfrastructureError: the engine failed.
        """
        archive, root = io.BytesIO(), folder.strip("/")
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, content in files.items():
                if isinstance(content, bytes):
                    entry = tarfile.TarInfo(f"{root}/{name}")
                    entry.size, entry.mode, entry.mtime = len(content), 0o644, int(time.time())
                    tar.addfile(entry, io.BytesIO(content))
                    continue
                places = context_files(content) if content.is_dir() else [("", content)]
                for below, place in places:
                    path = "/".join(p for p in (name, below) if p not in ("", "."))
                    add_file(tar, f"{root}/{path}", place, 0o755 if path == executable else None)
        # An engine makes the folders that are missing on the way.
        await asyncio.get_running_loop().run_in_executor(
            self._executor, self._engine.write_archive, self.id, "/", archive.getvalue()
        )

    async def get(self, path: str, limit: int = READ) -> dict[str, bytes] | None:
        """Return the regular files of a file or folder, by path relative to its parent; ``None`` if
        there is none, or it is larger than *limit*.

        Links are left out, for what they name is of the container's choosing.

        Raises:
            InfrastructureError: the engine failed.
        """
        data = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._engine.read_archive, self.id, path, limit
        )
        if data is None:
            return None
        files: dict[str, bytes] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for entry in tar:
                    parts = PurePosixPath(entry.name).parts
                    if entry.isreg() and ".." not in parts and not entry.name.startswith("/"):
                        content = tar.extractfile(entry)
                        assert content is not None
                        files["/".join(parts)] = content.read()
        except tarfile.TarError as e:
            raise InfrastructureError(f"the engine sent no archive for {path}: {e}") from e
        return files

    async def read(self, path: str, limit: int = READ) -> bytes | None:
        """Return the content of a regular file; ``None`` if there is none, or it is larger."""
        files = await self.get(path, limit)
        return None if files is None else files.get(PurePosixPath(path).name)

    def peak_memory(self) -> int:
        """Return the most bytes in use at one time; 0 if the kernel does not say."""
        return 0 if self._counters is None else self._counters.peak()

    def memory_kills(self) -> int:
        """Return how many processes the kernel ended for memory; 0 if it does not say."""
        return 0 if self._counters is None else self._counters.memory_kills()

    def cpu_seconds(self) -> float:
        """Return user and system time of all its processes; 0 if the kernel does not say."""
        return 0.0 if self._counters is None else self._counters.cpu_seconds()


@dataclass
class _Kept:
    first: bytearray
    last: bytearray
    cut: int = 0
    late: bool = False


def _exchange(
    connection: socket.socket, early: bytes, stdin: bytes, seconds: float, output: int
) -> _Kept:
    """Write the input, and read frames until the command ends or the time is over."""
    deadline = time.monotonic() + seconds
    pending, raw = memoryview(stdin), bytearray(early)
    kept = _Kept(bytearray(), bytearray())
    _take(raw, kept, output)
    connection.setblocking(False)
    if not pending:
        connection.shutdown(socket.SHUT_WR)
    poll = select.poll()
    while True:
        poll.register(connection, select.POLLIN | (select.POLLOUT if pending else 0))
        left = deadline - time.monotonic()
        events = poll.poll(max(0, left * 1000))
        if not events:
            kept.late = True
            return kept
        if events[0][1] & select.POLLOUT and pending:
            try:
                pending = pending[connection.send(pending[:CHUNK]) :]
            except OSError:  # the command does not read it, or has ended
                pending = pending[:0]
            if not pending:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
        if events[0][1] & ~select.POLLOUT:
            try:
                data = connection.recv(CHUNK)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                return kept
            raw += data
            _take(raw, kept, output)


def _take(raw: bytearray, kept: _Kept, output: int) -> None:
    """Move whole frames from *raw* to what is kept: a half from the begin, a half from the end."""
    while len(raw) >= 8:
        (size,) = struct.unpack_from(">4xL", raw)
        if len(raw) < 8 + size:
            return
        content = raw[8 : 8 + size]
        del raw[: 8 + size]
        room = max(0, output // 2 - len(kept.first)) if not kept.last else 0
        kept.first += content[:room]
        kept.last += content[room:]
        over = len(kept.last) - (output - len(kept.first))
        if over > 0:
            kept.cut += over
            del kept.last[:over]
