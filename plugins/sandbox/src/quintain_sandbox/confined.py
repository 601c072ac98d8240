"""One program without namespaces: its folder, control group and confiner, its end and what it left.

`confine` is the process between the trainer and the program. It stays outside of the program's
confinement, so it can end all of the program's processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain import InfrastructureError

from .box import SYSTEM
from .bpf import host_rules, seccomp_filter
from .cgroups import ControlGroup, Controllers
from .folder import make_folder, remove_folder
from .launched import CHUNK, LaunchedBox
from .launcher import Launcher, in_memory
from .opened import EndedBy, Finish
from .program import ENVIRONMENT, Program, Usage, process_limits

EXECUTE = 1
WRITE_FILE = 2
READ_FILE = 4
READ_FOLDER = 8
MAKE_DEVICES = 1 << 6 | 1 << 11
DEVICE_CALLS = 1 << 15
"""Access rights of Landlock, include/uapi/linux/landlock.h."""
READ = EXECUTE | READ_FILE | READ_FOLDER
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights about files a version has; 16 from version 5 on."""
DEVICES = {
    "/dev/null": READ_FILE | WRITE_FILE,
    "/dev/zero": READ_FILE,
    "/dev/random": READ_FILE,
    "/dev/urandom": READ_FILE,
}
START_SECONDS = 30.0
"""How long the confiner may take to get ready on a loaded machine."""


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """What is the same for all programs of a service.

    Attributes:
        abi: version of Landlock; 0 confines by limits and the user alone.
        place: where the folders of programs are made.
    """

    provider: str
    abi: int
    place: Path
    launcher: Launcher
    controllers: Controllers = field(default_factory=Controllers)
    read_only: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)

    def landlock(self, folder: Path) -> dict[str, Any] | None:
        """Return what Landlock refuses to a program with *folder*, and the exceptions."""
        if not self.abi:
            return None
        every = (1 << FILE_RIGHTS.get(self.abi, 16)) - 1
        paths = [path for path in (*SYSTEM, *self.read_only) if os.path.exists(path)]
        rules = [(path, READ if os.path.isdir(path) else READ & ~READ_FOLDER) for path in paths]
        rules += [*DEVICES.items(), (str(folder), every & ~MAKE_DEVICES & ~DEVICE_CALLS)]
        return {
            "rules": rules,
            "files": every,
            "network": 3 * (self.abi >= 4),
            "scopes": 3 * (self.abi >= 6),
        }

    def seccomp(self, user: int | None) -> bytes:
        """Return the filter of a program with a *user* of its own, or none; empty without
        Landlock.
        """
        return (
            seccomp_filter(host=host_rules(own_user=user is not None, abi=self.abi))
            if self.abi
            else b""
        )


class ConfinedBox(LaunchedBox):
    """See `LaunchedBox`; it has a folder on the host, too.

    Args:
        user: the host's user and group id to drop to, ``None`` to keep the present ones.
    """

    def __init__(
        self,
        confinement: Confinement,
        program: Program,
        user: int | None,
        give_back: Callable[[], None],
    ) -> None:
        self._confinement, self._user = confinement, user
        self._child: int | None = None
        super().__init__(confinement.provider, program, give_back)

    def _open(self, stack: ExitStack) -> None:
        confinement, program, user = self._confinement, self._program, self._user
        self._group = ControlGroup(
            confinement.controllers, program.limits.memory, program.limits.processes
        )
        stack.callback(self._group.remove)
        folder = make_folder(confinement.place, program.files, user)
        stack.callback(remove_folder, folder)
        with self._pipes(stack) as theirs:
            order = {
                "argv": list(program.argv),
                "environment": {
                    **confinement.environment,
                    "HOME": str(folder / "box"),
                    "TMPDIR": str(folder),
                    # Node ends if the system's file exists and cannot be read.
                    "OPENSSL_CONF": "/dev/null",
                },
                "home": str(folder / "box"),
                "user": user,
                "limits": process_limits(
                    program,
                    own_user=user is not None,
                    memory_is_counted=confinement.controllers.memory is not None,
                ),
                "groups": [str(entrance) for entrance in self._group.entrances],
                "landlock": confinement.landlock(folder),
            }
            theirs.append(in_memory(json.dumps(order).encode()))
            theirs.append(in_memory(confinement.seccomp(user)))
            self._process = confinement.launcher.launch([], theirs, limits={})
        self.ended = self._process.ended
        stack.callback(self._end)
        self._await_child(stack)
        self.began = time.monotonic()

    def _await_child(self, stack: ExitStack) -> None:
        """Read the first report: the program's process."""
        deadline = time.monotonic() + START_SECONDS
        while b"\n" not in self._report:
            ready, _, _ = select.select(
                [self._status], [], [], max(0.0, deadline - time.monotonic())
            )
            data = os.read(self._status, CHUNK) if ready else b""
            if not data:
                os.set_blocking(self.stderr, False)
                error_text = b""
                with contextlib.suppress(OSError):
                    error_text = os.read(self.stderr, CHUNK)
                raise self._failure(error_text)
            self._report += data
        os.set_blocking(self._status, False)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            self._child = os.pidfd_open(int(json.loads(self._report.splitlines()[0])["child-pid"]))
            stack.callback(os.close, self._child)

    def kill(self) -> None:
        """End the program by SIGKILL; the confiner kills what it leaves."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child, signal.SIGKILL)

    def finish(self, ended_by: EndedBy | None, stderr: bytes) -> Finish:
        """Wait for the confiner and return what it reported; see `Box.finish`."""
        self._await_end()
        end = self._process.wait()
        seconds, memory = time.monotonic() - self.began, self._group.out_of_memory()
        if end is None:
            raise InfrastructureError("the launcher of the sandbox died")
        self._read_reports()
        last = json.loads(self._report.splitlines()[-1])
        if "exit-code" not in last and not memory:
            raise self._failure(stderr)
        usage = Usage(
            seconds=seconds,
            cpu_seconds=end.cpu_seconds,
            memory=self._group.peak() or end.memory,
            refused_forks=self._group.refused_forks(),
            user=last.get("user"),
        )
        return Finish(exit=last.get("exit-code"), out_of_memory=memory, usage=usage)

    def close(self) -> None:
        """Close the box and remove its folder; see `Box.close`."""
        try:
            super().close()
        except OSError as e:
            raise InfrastructureError(
                f"{self._provider} cannot remove what a program left: {e}"
            ) from e
