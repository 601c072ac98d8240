"""Control groups, version 1 or 2, for memory and the number of processes; one group per run, below the trainer's own.

Groups nest in the group of this process, so that limits set on it from outside still hold.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "quintain-sandbox"
STALE = re.compile(PREFIX + r"-(\d+)-\d+")
_serial = itertools.count()


@dataclass(frozen=True)
class Controllers:
    """The folders below which groups of runs are made; ``None`` where a controller is absent or not writable."""

    memory: Path | None = None
    pids: Path | None = None
    version: int = 1


def own_controllers(proc: Path = Path("/proc/self")) -> Controllers:
    """The controllers that this process may use below its own group; version 2 wins where it has both."""
    paths = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path.lstrip("/")
    unified, places = None, {}
    for line in (proc / "mounts").read_text().splitlines():
        _, target, kind, options, *_ = line.split()
        if kind == "cgroup2":
            unified = Path(target) / paths.get("", "")
        elif kind == "cgroup":
            for name in {"memory", "pids"} & set(options.split(",")) & paths.keys():
                places[name] = Path(target) / paths[name]
    if unified is not None and _delegates(unified):
        return Controllers(unified, unified, 2)
    usable = {name: path for name, path in places.items() if os.access(path, os.W_OK) and (path / "tasks").exists()}
    return Controllers(usable.get("memory"), usable.get("pids"), 1)


def _delegates(group: Path) -> bool:
    """Whether groups below a version 2 *group* get both controllers, after an attempt to switch them on."""
    control = group / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if not {"memory", "pids"} <= set(control.read_text().split()):
            control.write_text("+memory +pids")  # EBUSY where processes are directly in the group
        return {"memory", "pids"} <= set(control.read_text().split()) and os.access(group, os.W_OK)
    return False


class ControlGroup:
    """The group of one run; `remove` leaves nothing behind."""

    def __init__(self, controllers: Controllers, memory: int, processes: int) -> None:
        """Make it. *memory* is bytes, swap included.

        Raises:
            OSError: a controller refused.
        """
        self._controllers = controllers
        name = f"{PREFIX}-{os.getpid()}-{next(_serial)}"
        self._memory = None if controllers.memory is None else controllers.memory / name
        self._pids = None if controllers.pids is None else controllers.pids / name
        self._folders = list(dict.fromkeys(folder for folder in (self._memory, self._pids) if folder is not None))
        try:
            for folder in self._folders:
                folder.mkdir()
            self._limit(memory, processes)
        except OSError:
            self.remove()
            raise

    def _limit(self, memory: int, processes: int) -> None:
        if self._pids is not None:
            (self._pids / "pids.max").write_text(str(processes))
        if self._memory is None:
            return
        if self._controllers.version == 2:
            (self._memory / "memory.max").write_text(str(memory))
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (self._memory / "memory.swap.max").write_text("0")
            (self._memory / "memory.oom.group").write_text("1")
            return
        (self._memory / "memory.limit_in_bytes").write_text(str(memory))
        with contextlib.suppress(OSError):
            (self._memory / "memory.memsw.limit_in_bytes").write_text(str(memory))

    def add(self, pid: int) -> None:
        """Move a process in; what it starts later is in, too."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the group for memory."""
        file = "memory.events" if self._controllers.version == 2 else "memory.oom_control"
        return self._counter(self._memory, file, "oom_kill") > 0

    def refused_forks(self) -> int:
        """How often the limit on processes refused one."""
        return self._counter(self._pids, "pids.events", "max")

    def peak(self) -> int:
        """Most bytes in use at one time; 0 if the kernel does not say."""
        file = "memory.peak" if self._controllers.version == 2 else "memory.max_usage_in_bytes"
        with contextlib.suppress(OSError, ValueError):
            return 0 if self._memory is None else int((self._memory / file).read_text())
        return 0

    @staticmethod
    def _counter(folder: Path | None, file: str, key: str) -> int:
        if folder is not None:
            with contextlib.suppress(OSError):
                for line in (folder / file).read_text().splitlines():
                    name, _, value = line.partition(" ")
                    if name == key:
                        return int(value)
        return 0

    def remove(self, seconds: float = 1.0) -> bool:
        """Kill what is still in it and remove it; whether that succeeded within *seconds*."""
        gone = [_removed(folder, seconds) for folder in self._folders]
        return all(gone)


def _removed(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(OSError, ValueError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.002)
        else:
            return True


def remove_stale(controllers: Controllers) -> None:
    """Remove the groups of trainers that died."""
    for parent in {controllers.memory, controllers.pids} - {None}:
        for folder in parent.glob(PREFIX + "-*") if parent is not None else ():
            match = STALE.fullmatch(folder.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                _removed(folder, 1.0)
