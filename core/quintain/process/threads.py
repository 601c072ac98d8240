"""How many threads torch uses, and how they wait: set before torch loads OpenMP, which reads the
environment once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path


def set_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set ``OMP_NUM_THREADS`` and ``OMP_WAIT_POLICY``, unless *environ* has settings of OpenMP's
    threads.

    As many threads as CPUs that this process may use. By default a thread of OpenMP waits for the
    others by spinning: beside other processes it then uses up the time that the thread it waits for
    needs (studies/log/speed.md, 2026-11-22).
    """
    if (
        not environ.keys() & {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
        and (quota := cpu_quota()) is not None
    ):
        environ["OMP_NUM_THREADS"] = str(
            max(1, min(len(os.sched_getaffinity(0)), math.ceil(quota)))
        )
    if not environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        environ["OMP_WAIT_POLICY"] = "PASSIVE"


@contextmanager
def half_the_threads() -> Iterator[None]:
    """Let torch use half of its threads inside the block. Two computations at once would wait for
    each other's threads (studies/log/speed.md).
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cpu_quota(
    root: Path = Path("/sys/fs/cgroup"), cgroup: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Return the number of CPUs that the control groups of this process (versions 1 and 2) let it
    use; ``None`` without a limit.
    """
    folders = {root, root / "cpu"}  # a container sees its own group as the root
    for line in cgroup.read_text().splitlines() if cgroup.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            group_folder = root / controllers / path.lstrip("/")
            folders |= {
                folder
                for folder in (group_folder, *group_folder.parents)
                if folder.is_relative_to(root)
            }
    return min((quota for quota in map(_quota, folders) if quota), default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (file := folder / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
