"""One run in bubblewrap: start, control group, release, pump, kill. Blocking; the service calls it in threads.

bubblewrap waits on a file descriptor until this process has put the sandboxed child into its control groups. Then
the clock starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from quintain import InfrastructureError

from .cgroups import ControlGroup, Controllers
from .protocol import Program, ProgramLimits, ProgramResult, Status, Usage

INSIDE = 65534
"""User and group inside the box: nobody."""
HOME = "/tmp/box"
"""The working directory inside."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
"""Host paths that interpreters and compilers need; read-only, and left out where they do not exist."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
START_SECONDS = 30.0
"""How long bubblewrap may take to get ready on a loaded machine."""
CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is the same for all runs of a service."""

    bwrap: str
    prlimit: str
    setpriv: str
    seccomp: bytes
    controllers: Controllers = field(default_factory=Controllers)
    read_only: tuple[str, ...] = ()


class Stop:
    """Ends a run from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        with self._lock:
            if self._write >= 0:
                os.write(self._write, b"x")

    def close(self) -> None:
        with self._lock:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1


def run_program(setting: Setting, program: Program, user: int | None, stop: Stop) -> ProgramResult:
    """Run *program*; *user* is the host's user and group id to drop to, ``None`` to keep the present ones.

    Raises:
        InfrastructureError: bubblewrap did not start the program, or was killed, or left something behind.
    """
    with ExitStack() as stack:
        try:
            group = ControlGroup(setting.controllers, program.limits.memory, program.limits.processes)
            stack.callback(group.remove)
            box = _Box(setting, program, user, stack)
            result = box.run(group, stop)
        except OSError as e:
            raise InfrastructureError(f"bubblewrap cannot start a program: {e}") from e
        if not group.remove():
            raise InfrastructureError("processes of a sandbox did not end within 1 s of SIGKILL")
        return result


class _Box:
    """The processes and pipes of one run."""

    def __init__(self, setting: Setting, program: Program, user: int | None, stack: ExitStack) -> None:
        self._program, self._limits, self._stack = program, program.limits, stack
        self._status, status = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, self._status)
        block, self._block = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, self._block)
        self._child: int | None = None
        self._report = b""
        inside = [status, block]

        def file(data: bytes) -> int:
            inside.append(_in_memory(data))
            return inside[-1]

        try:
            words = list(_options(setting, program, status, block, file))
            arguments = file(b"".join(word.encode() + b"\0" for word in words))
            self._process = subprocess.Popen(
                [*_launcher(setting, program.limits, user), "--args", str(arguments), "--", *program.argv],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env={}, cwd="/",
                pass_fds=inside, start_new_session=True,
            )  # fmt: skip
        finally:
            for descriptor in inside:
                os.close(descriptor)
        stack.callback(self._end)

    def run(self, group: ControlGroup, stop: Stop) -> ProgramResult:
        self._await_child()
        if self._child is None:
            raise self._failure()
        try:
            group.add(self._child)
        except ProcessLookupError:  # bubblewrap failed after its first report
            raise self._failure() from None
        host_user = _user_of(self._child)
        began = time.monotonic()
        os.write(self._block, b"x")
        pump = _Pump(self._process, self._program, began + self._limits.seconds, stop)
        ended_by = pump.until_end()
        if ended_by is not None:
            self._kill()
            pump.drain()
        usage, memory = self._reap(began), group.out_of_memory()
        code = self._exit_code()
        if ended_by == "stopped":
            raise InfrastructureError("the run was stopped")
        if code is None and ended_by is None and not memory:
            raise self._failure(pump.stderr)
        return ProgramResult(
            status=_status(ended_by, memory, code, usage, self._limits),
            exit=code if ended_by is None else None,
            stdout=bytes(pump.stdout),
            stderr=bytes(pump.stderr),
            truncated=tuple(pump.truncated),
            usage=Usage(
                seconds=usage.seconds,
                cpu_seconds=usage.cpu_seconds,
                memory=group.peak() or usage.memory,
                refused_forks=group.refused_forks(),
                user=host_user,
            ),
        )

    def _await_child(self) -> None:
        """Read bubblewrap's first report: the sandboxed child, which waits to be released."""
        deadline = time.monotonic() + START_SECONDS
        while b"\n" not in self._report:
            ready, _, _ = select.select([self._status], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._status, CHUNK) if ready else b""
            if not data:
                return
            self._report += data
        child = int(json.loads(self._report.partition(b"\n")[0])["child-pid"])
        with contextlib.suppress(ProcessLookupError):  # bubblewrap failed after its report
            self._handle = os.pidfd_open(child)
            self._stack.callback(os.close, self._handle)
            self._child = child

    def _exit_code(self) -> int | None:
        """What the program exited with; ``None`` if it never ran or bubblewrap died before it."""
        os.set_blocking(self._status, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, CHUNK):
                self._report += data
        for line in self._report.splitlines():
            with contextlib.suppress(ValueError):
                if "exit-code" in (record := json.loads(line)):
                    return int(record["exit-code"])
        return None

    def _failure(self, said: bytes | bytearray = b"") -> InfrastructureError:
        self._kill()
        if not said and self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)
            with contextlib.suppress(OSError):
                said = os.read(self._process.stderr.fileno(), CHUNK)
        text = said[-500:].decode("utf-8", "replace").strip() or "it was killed, or said nothing"
        return InfrastructureError(f"bubblewrap did not run {self._program.argv[0]!r} to its end: {text}")

    def _kill(self) -> None:
        """Kill the program, which is pid 1 of its namespace, so that the kernel kills all others in there."""
        with contextlib.suppress(ProcessLookupError):
            if self._child is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()

    def _reap(self, began: float) -> Usage:
        """Wait for bubblewrap, which ends after its child; a program cannot make it wait longer than the kill."""
        deadline = time.monotonic() + 2.0
        while True:
            pid, status, taken = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                self._kill()
                self._process.kill()
            time.sleep(0.0005)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Usage(
            seconds=time.monotonic() - began,
            cpu_seconds=taken.ru_utime + taken.ru_stime,
            memory=taken.ru_maxrss * 1024,
        )

    def _end(self) -> None:
        """Whatever happened: nothing of the run is left."""
        if self._process.returncode is None:
            self._kill()
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class _Pump:
    """Moves the three standard streams until they end or a limit is reached."""

    def __init__(self, process: subprocess.Popen[bytes], program: Program, deadline: float, stop: Stop) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.truncated: list[str] = []
        self._cap, self._deadline, self._stop = program.limits.output, deadline, stop
        self._stdin = memoryview(program.stdin)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._input = process.stdin
        self._sinks = {
            process.stdout.fileno(): ("stdout", self.stdout),
            process.stderr.fileno(): ("stderr", self.stderr),
        }
        self._poll = select.poll()
        for descriptor in self._sinks:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)
        self._poll.register(stop.fileno(), select.POLLIN)
        os.set_blocking(self._input.fileno(), False)
        self._poll.register(self._input.fileno(), select.POLLOUT)
        self._open = set(self._sinks)
        self._process = process
        self._exit = os.pidfd_open(process.pid)
        self._poll.register(self._exit, select.POLLIN)

    def until_end(self) -> str | None:
        """Pump; what ended the program: ``timeout``, ``output``, ``stopped``, or ``None`` for itself."""
        try:
            while True:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return "timeout"
                for descriptor, _ in self._poll.poll(ceil(left * 1000)):
                    if descriptor == self._stop.fileno():
                        return "stopped"
                    if descriptor == self._exit:
                        self.drain()
                        return "output" if self.truncated else None
                    if descriptor in self._sinks:
                        self._read(descriptor)
                    else:
                        self._write()
                if self.truncated:
                    return "output"
        finally:
            os.close(self._exit)

    def drain(self) -> None:
        """Take what lies in the pipes after the end, up to the cap."""
        for descriptor in tuple(self._open):
            while descriptor in self._open and self._read(descriptor):
                pass

    def _read(self, descriptor: int) -> bool:
        name, sink = self._sinks[descriptor]
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        room = self._cap - len(sink)
        sink += data[:room]
        if len(data) > room and name not in self.truncated:
            self.truncated.append(name)
        if not data or len(data) > room:
            self._open.discard(descriptor)
            self._poll.unregister(descriptor)
        return True

    def _write(self) -> None:
        try:
            written = os.write(self._input.fileno(), self._stdin[:CHUNK]) if self._stdin else 0
            self._stdin = self._stdin[written:]
        except BlockingIOError:
            return
        except OSError:  # the program closed its standard input
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._poll.unregister(self._input.fileno())
            self._input.close()


def _status(ended_by: str | None, memory: bool, code: int | None, usage: Usage, limits: ProgramLimits) -> Status:
    """The limit that came first; memory comes before time, because a program may wait for a child that was killed."""
    if ended_by == "output":
        return "output"
    if memory:
        return "memory"
    by_cpu_limit = code in (128 + signal.SIGKILL, 128 + signal.SIGXCPU) and usage.cpu_seconds >= limits.cpu_seconds
    if ended_by == "timeout" or by_cpu_limit:
        return "timeout"
    return "ok" if code == 0 else "failed"


def _user_of(pid: int) -> int | None:
    """The effective user id of a process, in this process' user namespace."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def _in_memory(data: bytes) -> int:
    """A descriptor of a file in memory, at its start."""
    descriptor = os.memfd_create("quintain", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _launcher(setting: Setting, limits: ProgramLimits, user: int | None) -> Iterator[str]:
    """bwrap behind prlimit(1), whose limits hold for each process: the second line behind control groups.

    A program changes the user, because Popen would fork for it, which copies the page tables of a large trainer.
    """
    if user is not None:
        yield from (setting.setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups", "--")
    yield setting.prlimit
    seconds = ceil(limits.cpu_seconds)
    yield f"--cpu={seconds}:{seconds}"
    yield "--core=0:0"
    yield f"--fsize={limits.disk}:{limits.disk}"
    yield f"--nofile={limits.open_files}:{limits.open_files}"
    if user is not None:  # counted per user: a shared one would count the trainer's processes, too
        yield f"--nproc={limits.processes + 2}:{limits.processes + 2}"
    if setting.controllers.memory is None:
        yield f"--as={limits.memory}:{limits.memory}"
    yield from ("--", setting.bwrap)


def _options(
    setting: Setting, program: Program, status: int, block: int, file: Callable[[bytes], int]
) -> Iterator[str]:
    """Options of bwrap(1), which travel in a file: its command line is readable in the box."""
    yield from (
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    )
    yield from ("--uid", str(INSIDE), "--gid", str(INSIDE), "--hostname", "sandbox", "--cap-drop", "ALL")
    yield from ("--as-pid-1", "--die-with-parent", "--new-session", "--clearenv")
    yield from ("--json-status-fd", str(status), "--block-fd", str(block))
    for path in SYSTEM:
        if os.path.islink(path):  # a merged /usr
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in setting.read_only:
        yield from ("--ro-bind", path, path)
    yield from ("--proc", "/proc", "--dev", "/dev", "--size", str(program.limits.disk), "--tmpfs", "/dev/shm")
    yield from ("--remount-ro", "/dev", "--perms", "1777", "--size", str(program.limits.disk), "--tmpfs", "/tmp")
    users = f"nobody:x:{INSIDE}:{INSIDE}:nobody:{HOME}:/bin/sh\n".encode()
    yield from ("--ro-bind-data", str(file(users)), "/etc/passwd", "--dir", HOME, "--chdir", HOME)
    for name, data in program.files.items():
        yield from ("--perms", "0644", "--file", str(file(data)), str(Path(HOME) / name))
    yield from ("--remount-ro", "/", "--seccomp", str(file(setting.seccomp)))
    for name, value in ENVIRONMENT.items():
        yield from ("--setenv", name, value)
