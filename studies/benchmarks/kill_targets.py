"""The processes of a run, read from ``/proc``: which of them a kill may hit."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LAUNCHER, BOX = b"launcher_main.py", b"bwrap"
ACTOR = b"ray::ProcessActor"
OF_ACTORS = (
    b"quintain_learners.fsdp.join",
    b"quintain_scale.workers.join",
    b"quintain_engines.placed.keeper",
)


def command_of(pid: int) -> bytes:
    """The command line of a process; empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children(pid: int) -> list[int]:
    """The processes that threads of a process have started."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def cpu_of(pid: int) -> float:
    """The processor time, in seconds, of a process and of all that it has started."""
    total = 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def has_ended(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def placed(folder: Path) -> list[int]:
    """What actors of Ray have started for the run in *folder*: ranks, the watchers of episode
    processes, and the keepers of servers.
    """
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and any(module in command_of(int(name)) for module in OF_ACTORS):
            with suppress(OSError):
                if Path(f"/proc/{name}/cwd").resolve() == folder:
                    found.append(int(name))
    return found


def targets(kind: str, run: int, folder: Path) -> list[int]:
    """The processes of *run*, in *folder*, that a kill of *kind* may hit."""
    if kind == "actor":
        return [parent(pid) for pid in placed(folder) if ACTOR in command_of(parent(pid))]
    # what Ray has started are no children of the run
    elsewhere = (one for pid in placed(folder) for one in (pid, *children(pid)))
    own = [*dict.fromkeys((*children(run), *elsewhere))]
    workers = [pid for pid in own if b"quintain_scale.workers.episode_worker" in command_of(pid)]
    if kind == "engine":
        return [pid for pid in own if b"replica_server.py" in command_of(pid)]
    if kind == "worker":
        return workers
    if kind == "sandbox":
        launchers = [p for w in workers for p in children(w) if LAUNCHER in command_of(p)]
        boxes = [p for one in launchers for p in children(one) if BOX in command_of(p)]
        return boxes or launchers
    forked = [p for s in own if b"multiprocessing.forkserver" in command_of(s) for p in children(s)]
    return forked or [pid for pid in own if b"--pipe" in command_of(pid)]
