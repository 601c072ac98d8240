"""The provider `landlock`: for machines that allow no namespaces, such as an unprivileged
container.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path

from quintain import InfrastructureError

from .cgroups import Controllers, own_controllers, remove_stale
from .confine import CREATE_RULESET
from .confined import ConfinedBox, Confinement
from .folder import place_of_folders, remove_stale_folders
from .launcher import Launcher
from .local import AS_ROOT, GROUPS, NO_FILTER, LocalSandbox
from .opened import Box
from .program import Program

KERNEL = (
    "needs Linux 5.13 with Landlock: add 'landlock' to the kernel's lsm= parameter (cat "
    "/sys/kernel/security/lsm)"
)


def landlock_version() -> int:
    """Return the version of Landlock's interface that the kernel has; 0 if none or switched off."""
    if platform.system() != "Linux":
        return 0
    return max(
        0,
        int(ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)),
    )


class ConfinedSandbox(LocalSandbox):
    """A provider whose programs share the host's namespaces: each has a folder on the host and a
    confiner beside it.
    """

    loopback = False
    version = 0
    """Of Landlock; 0 uses none."""
    confinement: Confinement | None = None

    def prepare(self) -> None:
        """Remove what killed trainers left, and start the launcher; see `ProbedSandbox.prepare`."""
        if platform.system() != "Linux":
            raise InfrastructureError(f"{self.name} needs Linux")
        controllers = own_controllers() if Path("/proc/self/cgroup").exists() else Controllers()
        remove_stale(controllers)
        place = place_of_folders(counted=controllers.memory is not None)
        remove_stale_folders(place)
        self.confinement = Confinement(
            provider=self.name, abi=self.version, place=place, launcher=Launcher(),
            controllers=controllers,
            read_only=self.read_only, environment=self.environment,
        )  # fmt: skip

    def release(self) -> None:
        """Close the launcher; see `ProbedSandbox.release`."""
        confinement, self.confinement = self.confinement, None
        if confinement is not None:
            confinement.launcher.close()

    def box(self, program: Program, user: int | None, give_back: Callable[[], None]) -> Box:
        """Start *program* under the confiner; see `LocalSandbox.box`."""
        if self.confinement is None:
            give_back()
            raise self.not_started()
        return ConfinedBox(self.confinement, program, user, give_back)


class Landlock(ConfinedSandbox):
    """No namespaces: Landlock for files and signals, seccomp for everything else that reaches the
    host.

    A program has no sockets besides connected pairs, no ``/dev/shm`` and no ``/proc``, so that
    locks and pools of `multiprocessing` do not work. It sees that host files exist, by `os.stat`,
    and nothing else of them.
    """

    sessions = False

    def prepare(self) -> None:
        """Find the version of Landlock, or refuse to start; see `ProbedSandbox.prepare`."""
        self.version = landlock_version()
        if not self.version:
            raise InfrastructureError(f"landlock is not in this kernel: {KERNEL}")
        super().prepare()

    def fix(self, axis: str) -> str:
        """Return the advice for *axis*; see `ProbedSandbox.fix`."""
        if axis in ("memory", "forks", "disk"):
            return GROUPS
        if axis == "users":
            return AS_ROOT
        if axis == "syscalls":
            return NO_FILTER
        if axis == "processes" and 0 < self.version < 6:
            return (
                f"signals are confined from Linux 6.12 on (Landlock 6; this is {self.version}); "
                f"{AS_ROOT}"
            )
        return super().fix(axis)
