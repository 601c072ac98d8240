"""One program in bubblewrap: start, control group, release, kill.

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
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from quintain import InfrastructureError

from .cgroups import ControlGroup, Controllers
from .program import Program, ProgramLimits, Usage
from .running import Box, EndedBy, Finish

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


class BubblewrapBox(Box):
    """The processes, pipes and control groups of one program.

    Args:
        user: the host's user and group id to drop to, ``None`` to keep the present ones.
        give_back: called when nothing of the user is left.

    Raises:
        InfrastructureError: bubblewrap did not start the program.
    """

    def __init__(
        self, setting: Setting, program: Program, user: int | None, give_back: Callable[[], None] = lambda: None
    ) -> None:
        self._program = program
        self._child: int | None = None
        self._report = b""
        with ExitStack() as stack:
            stack.callback(give_back)
            try:
                self._open(setting, program, user, stack)
            except OSError as e:
                raise InfrastructureError(f"bubblewrap cannot start a program: {e}") from e
            self._stack = stack.pop_all()

    def _open(self, setting: Setting, program: Program, user: int | None, stack: ExitStack) -> None:
        self._group = ControlGroup(setting.controllers, program.limits.memory, program.limits.processes)
        stack.callback(self._group.remove)
        self._status, status = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, self._status)
        block, self._block = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, self._block)
        standard = self._standard_streams(stack)
        inside = [status, block]

        def file(data: bytes) -> int:
            inside.append(_in_memory(data))
            return inside[-1]

        try:
            words = list(_options(setting, program, status, block, file))
            arguments = file(b"".join(word.encode() + b"\0" for word in words))
            self._process = subprocess.Popen(
                [*_launcher(setting, program.limits, user), "--args", str(arguments), "--", *program.argv],
                stdin=standard[0], stdout=standard[1], stderr=standard[2], env={}, cwd="/",
                pass_fds=inside, start_new_session=True,
            )  # fmt: skip
        finally:
            for descriptor in (*standard, *inside):
                os.close(descriptor)
        stack.callback(self._end)
        self._release(stack)

    def _standard_streams(self, stack: ExitStack) -> tuple[int, int, int]:
        """Make the pipes; the ends of the program."""
        stdin, self.stdin = os.pipe2(os.O_CLOEXEC)
        stack.callback(self.end_input)
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, self.stdout)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, self.stderr)
        return stdin, stdout, stderr

    def _release(self, stack: ExitStack) -> None:
        self._await_child(stack)
        if self._child is None:
            raise self._failure()
        try:
            self._group.add(self._child)
        except ProcessLookupError:  # bubblewrap failed after its first report
            raise self._failure() from None
        self._host_user = _user_of(self._child)
        self.ended = os.pidfd_open(self._process.pid)
        stack.callback(os.close, self.ended)
        self.began = time.monotonic()
        os.write(self._block, b"x")

    def _await_child(self, stack: ExitStack) -> None:
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
            stack.callback(os.close, self._handle)
            self._child = child

    def kill(self) -> None:
        """Kill the program, which is pid 1 of its namespace, so that the kernel kills all others in there."""
        with contextlib.suppress(ProcessLookupError):
            if self._child is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()

    def finish(self, ended_by: EndedBy | None, stderr: bytes) -> Finish:
        """See `Box.finish`."""
        usage, memory = self._reap(), self._group.out_of_memory()
        code = self._exit_code()
        if code is None and ended_by is None and not memory:
            raise self._failure(stderr)
        peak, refused = self._group.peak(), self._group.refused_forks()
        usage = replace(usage, memory=peak or usage.memory, refused_forks=refused, user=self._host_user)
        return Finish(exit=code, out_of_memory=memory, usage=usage)

    def close(self) -> None:
        """See `Box.close`."""
        self._stack.close()
        if not self._group.remove():
            raise InfrastructureError("processes of a sandbox did not end within 1 s of SIGKILL")

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

    def _failure(self, said: bytes = b"") -> InfrastructureError:
        self.kill()
        if not said:
            os.set_blocking(self.stderr, False)
            with contextlib.suppress(OSError):
                said = os.read(self.stderr, CHUNK)
        text = said[-500:].decode("utf-8", "replace").strip() or "it was killed, or said nothing"
        return InfrastructureError(f"bubblewrap did not run {self._program.argv[0]!r} to its end: {text}")

    def _reap(self) -> Usage:
        """Wait for bubblewrap, which ends after its child; a program cannot make it wait longer than the kill."""
        deadline = time.monotonic() + 2.0
        while True:
            pid, status, taken = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                self.kill()
                self._process.kill()
            time.sleep(0.0005)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Usage(
            seconds=time.monotonic() - self.began,
            cpu_seconds=taken.ru_utime + taken.ru_stime,
            memory=taken.ru_maxrss * 1024,
        )

    def _end(self) -> None:
        """Whatever happened: nothing of the run is left."""
        if self._process.returncode is None:
            self.kill()
            self._process.kill()
            self._process.wait()


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
