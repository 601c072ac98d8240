"""One program in bubblewrap: start, kill, result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

from quintain import InfrastructureError

from .cgroups import ControlGroup, Controllers
from .launched import LaunchedBox
from .launcher import Launcher, in_memory
from .opened import EndedBy, Finish
from .program import ENVIRONMENT, HOME, Program, Usage, process_limits

INSIDE = 65534
"""User and group inside the box: nobody."""
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    # Debian and Fedora keep there what a JDK reads at its start.
    *sorted(glob("/etc/java*")),
)
"""Host paths that interpreters and compilers need; read-only, and left out where they do not
exist.
"""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is the same for all runs of a service."""

    bwrap: str
    launcher: Launcher
    seccomp: bytes
    controllers: Controllers = field(default_factory=Controllers)
    read_only: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)


class BubblewrapBox(LaunchedBox):
    """See `LaunchedBox`.

    Args:
        user: the host's user and group id to drop to, ``None`` to keep the present ones.
    """

    def __init__(
        self,
        setting: Setting,
        program: Program,
        user: int | None,
        give_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._setting, self._user = setting, user
        self._cpu_before = 0.0
        super().__init__("bubblewrap", program, give_back)

    def _open(self, stack: ExitStack) -> None:
        setting, program = self._setting, self._program
        # bubblewrap's own process is in the groups, too.
        self._group = ControlGroup(
            setting.controllers, program.limits.memory, program.limits.processes + 1
        )
        stack.callback(self._group.remove)
        with self._pipes(stack) as theirs:

            def inherit(data: bytes) -> int:
                theirs.append(in_memory(data))
                return len(theirs) - 1

            os.set_blocking(self._status, False)
            words = list(_options(setting, program, len(theirs) - 1, inherit))
            options = inherit(b"".join(word.encode() + b"\0" for word in words))
            self.began = time.monotonic()
            self._process = setting.launcher.launch(
                [setting.bwrap, "--args", str(options), "--", *program.argv],
                theirs,
                limits=_limits(setting, program, self._user),
                groups=self._group.entrances,
                user=self._user,
            )
        self.ended = self._process.ended
        stack.callback(self._end)

    def waits(self) -> bool:
        """Return whether it runs and has said nothing."""
        return not select.select([self.stdout, self.stderr, self.ended], [], [], 0.0)[0]

    def release(self, program: Program) -> None:
        """Let an interpreter that waits (`warm`) run *program*, under its limits, from now on.

        Raises:
            OSError: it has more memory than *program* may have.
        """
        self._group.limit(program.limits.memory, program.limits.processes + 1)
        self._group.forget_peak()
        child = self._record("child-pid")
        with contextlib.suppress(OSError):
            self._cpu_before = int(Path(f"/proc/{child}/schedstat").read_text().split()[0]) / 1e9
        self._program = program
        self.preamble = message(program, _limits(self._setting, program, self._user))
        self.began = time.monotonic()

    def kill(self) -> None:
        """End the program, which is pid 1 of its namespace, by SIGKILL, so that the kernel kills
        all others in there.

        Not bubblewrap itself, which must live to report the exit code. Only before it has reported
        the number of the program is bubblewrap killed, and ``--die-with-parent`` then ends the
        program.
        """
        child = self._record("child-pid")
        if child is None or not self._process.alive():
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            # not reaped, and its number not given again, while bubblewrap lives
            os.kill(child, signal.SIGKILL)

    def finish(self, ended_by: EndedBy | None, stderr: bytes) -> Finish:
        """Wait for bubblewrap and return what it reported; see `Box.finish`."""
        if ended_by is not None:
            self._await_end()
        end = self._process.wait()
        seconds, memory = time.monotonic() - self.began, self._group.out_of_memory()
        code = self._record("exit-code")
        if end is None:
            raise InfrastructureError("the launcher of the sandbox died")
        if code is None and ended_by is None and not memory:
            raise self._failure(stderr)
        usage = Usage(
            seconds=seconds,
            cpu_seconds=max(0.0, end.cpu_seconds - self._cpu_before),
            memory=self._group.peak() or end.memory,
            refused_forks=self._group.refused_forks(),
            user=end.user,
        )
        return Finish(exit=code, out_of_memory=memory, usage=usage)

    def _record(self, key: str) -> int | None:
        """Return a number that bubblewrap reported so far: ``child-pid``, or ``exit-code`` of a
        program that ran.
        """
        self._read_reports()
        for line in self._report.splitlines():
            with contextlib.suppress(ValueError):
                if key in (record := json.loads(line)):
                    return int(record[key])
        return None


def message(program: Program, limits: dict[str, int]) -> bytes:
    """Return what `warm_main` reads: the length of a header, the header, the files."""
    header = {
        "argv": list(program.argv),
        "limits": limits,
        "files": [(name, len(data)) for name, data in program.files.items()],
    }
    encoded = json.dumps(header).encode()
    return b"".join((len(encoded).to_bytes(8, "big"), encoded, *program.files.values()))


def _limits(setting: Setting, program: Program, user: int | None) -> dict[str, int]:
    return process_limits(
        program,
        own_user=user is not None,
        memory_is_counted=setting.controllers.memory is not None,
        supervisors=2,
    )


def _options(
    setting: Setting, program: Program, status: int, file: Callable[[bytes], int]
) -> Iterator[str]:
    """Yield the options of bwrap(1), which travel in a file: its command line is readable in the
    box.
    """
    yield from (
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    )
    yield from (
        "--uid",
        str(INSIDE),
        "--gid",
        str(INSIDE),
        "--hostname",
        "sandbox",
        "--cap-drop",
        "ALL",
    )
    yield from ("--as-pid-1", "--die-with-parent", "--new-session", "--clearenv")
    yield from ("--json-status-fd", str(status))
    for path in SYSTEM:
        if os.path.islink(path):  # a merged /usr
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind", path, path)
    below_tmp = [
        path for path in setting.read_only if Path("/tmp") in Path(os.path.normpath(path)).parents
    ]
    for path in setting.read_only:
        if path not in below_tmp:
            yield from ("--ro-bind", path, path)
    yield from (
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        str(program.limits.disk),
        "--tmpfs",
        "/dev/shm",
    )
    yield from (
        "--remount-ro",
        "/dev",
        "--perms",
        "1777",
        "--size",
        str(program.limits.disk),
        "--tmpfs",
        "/tmp",
    )
    for path in below_tmp:  # the box's own /tmp would hide them
        yield from ("--ro-bind", path, path)
    users = f"nobody:x:{INSIDE}:{INSIDE}:nobody:{HOME}:/bin/sh\n".encode()
    yield from ("--ro-bind-data", str(file(users)), "/etc/passwd", "--dir", HOME, "--chdir", HOME)
    for name, data in program.files.items():
        yield from ("--perms", "0644", "--file", str(file(data)), str(Path(HOME) / name))
    yield from ("--remount-ro", "/", "--seccomp", str(file(setting.seccomp)))
    for name, value in setting.environment.items():
        yield from ("--setenv", name, value)
