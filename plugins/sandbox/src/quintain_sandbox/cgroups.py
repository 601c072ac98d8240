"""Control groups, version 1 or 2, for memory and the number of processes; one group per run, below
the trainer's own.

Groups nest in the group of this process, so that limits set on it from outside still hold.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "quintain-sandbox"
STALE = re.compile(PREFIX + r"-(\d+)-\d+")
_serial = itertools.count()


@dataclass(frozen=True)
class Controllers:
    """The folders below which groups of runs are made; ``None`` where a controller is absent or not
    writable.
    """

    memory: Path | None = None
    pids: Path | None = None
    version: int = 1


def own_controllers(proc: Path = Path("/proc/self")) -> Controllers:
    """Return the controllers that this process may use below its own group; version 2 wins where it
    has both.
    """
    paths = _group_paths(proc / "cgroup")
    unified, places = None, {}
    for target, kind, options in _mounts(proc / "mounts"):
        if kind == "cgroup2":
            unified = Path(target) / paths.get("", "")
        else:
            for name in {"memory", "pids"} & set(options) & paths.keys():
                places[name] = Path(target) / paths[name]
    if unified is not None and _delegates(unified):
        return Controllers(unified, unified, 2)
    usable = {
        name: path
        for name, path in places.items()
        if os.access(path, os.W_OK) and (path / "tasks").exists()
    }
    return Controllers(usable.get("memory"), usable.get("pids"), 1)


def _group_paths(file: Path) -> dict[str, str]:
    """Return the path of a process' group by controller, below the controller's mount; version 2
    has the empty name.
    """
    paths = {}
    for line in file.read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path.lstrip("/")
    return paths


def _mounts(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield place, kind and options of each mounted hierarchy."""
    for line in file.read_text().splitlines():
        _, target, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield target, kind, options.split(",")


def _delegates(group: Path) -> bool:
    """Return whether groups below a version 2 *group* get both controllers, after an attempt to
    switch them on.
    """
    control = group / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if not {"memory", "pids"} <= set(control.read_text().split()):
            control.write_text("+memory +pids")  # EBUSY where processes are directly in the group
        return {"memory", "pids"} <= set(control.read_text().split()) and os.access(group, os.W_OK)
    return False


@dataclass(eq=False)
class Counters:
    """What the kernel counts of a group; the folders are those of its controllers, ``None`` where
    one is absent.
    """

    memory: Path | None = None
    pids: Path | None = None
    cpu: Path | None = None
    version: int = 1

    @classmethod
    def of(cls, pid: int) -> Counters | None:
        """Return those of another process' group; ``None`` if this process cannot read them."""
        paths = _group_paths(Path(f"/proc/{pid}/cgroup"))
        folders: dict[str, Path] = {}
        for target, kind, options in _mounts(Path("/proc/self/mounts")):
            names = {""} if kind == "cgroup2" else set(options) & {"memory", "pids", "cpuacct"}
            folders |= {name: Path(target) / paths[name] for name in names & paths.keys()}
        unified = folders.get("")
        if unified is not None and (unified / "memory.events").exists():
            return cls(unified, unified, unified, 2)
        memory = folders.get("memory")
        if memory is None or not (memory / "memory.oom_control").exists():
            return None
        return cls(memory, folders.get("pids"), folders.get("cpuacct"), 1)

    def out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the group for memory."""
        return self.memory_kills() > 0

    def memory_kills(self) -> int:
        """Return how many processes of the group the kernel killed for memory."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        return _counter(self.memory, file, "oom_kill")

    def refused_forks(self) -> int:
        """Return how often the limit on processes refused one."""
        return _counter(self.pids, "pids.events", "max")

    def peak(self) -> int:
        """Return the most bytes in use at one time; 0 if the kernel does not say."""
        return _number(
            self.memory, "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        )

    def cpu_seconds(self) -> float:
        """Return user and system time of all its processes; 0 if the kernel does not say."""
        if self.version == 2:
            return _counter(self.cpu, "cpu.stat", "usage_usec") / 1e6
        return _number(self.cpu, "cpuacct.usage") / 1e9


def _number(folder: Path | None, file: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return 0 if folder is None else int((folder / file).read_text())
    return 0


def _counter(folder: Path | None, file: str, key: str) -> int:
    if folder is not None:
        with contextlib.suppress(OSError):
            for line in (folder / file).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    return 0


class ControlGroup(Counters):
    """The group of one run; `remove` leaves nothing behind."""

    def __init__(self, controllers: Controllers, memory: int, processes: int) -> None:
        """Make it. *memory* is bytes, swap included.

        Raises:
            OSError: a controller refused.
        """
        name = f"{PREFIX}-{os.getpid()}-{next(_serial)}"
        memory_folder, pids_folder = (
            parent and parent / name for parent in (controllers.memory, controllers.pids)
        )
        super().__init__(memory_folder, pids_folder, version=controllers.version)
        self._folders = list(
            dict.fromkeys(folder for folder in (memory_folder, pids_folder) if folder is not None)
        )
        try:
            for folder in self._folders:
                folder.mkdir()
            self.limit(memory, processes)
        except OSError:
            self.remove()
            raise

    def limit(self, memory: int, processes: int) -> None:
        """Set the limits, also of a group in use.

        Raises:
            OSError: a controller refused, such as a limit below what is in use.
        """
        if self.pids is not None:
            (self.pids / "pids.max").write_text(str(processes))
        if self.memory is None:
            return
        if self.version == 2:
            (self.memory / "memory.max").write_text(str(memory))
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (self.memory / "memory.swap.max").write_text("0")
            (self.memory / "memory.oom.group").write_text("1")
            return
        # the limit with swap is never the smaller one: this one first if both grow
        with contextlib.suppress(OSError):
            (self.memory / "memory.memsw.limit_in_bytes").write_text(str(memory))
        (self.memory / "memory.limit_in_bytes").write_text(str(memory))
        with contextlib.suppress(OSError):
            (self.memory / "memory.memsw.limit_in_bytes").write_text(str(memory))

    def forget_peak(self) -> None:
        """Let `peak` count from now on, where the kernel can."""
        if self.memory is not None:
            with contextlib.suppress(OSError):
                (
                    self.memory
                    / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")
                ).write_text("0")

    @property
    def entrances(self) -> list[Path]:
        """Files to which a process with one thread writes 0 to move in; what it starts later is in,
        too.
        """
        name = "cgroup.procs" if self.version == 2 else "tasks"
        return [folder / name for folder in self._folders]

    def remove(self, seconds: float = 1.0) -> bool:
        """End what is still in it by SIGKILL and remove it; return whether that succeeded within
        *seconds*.
        """
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
