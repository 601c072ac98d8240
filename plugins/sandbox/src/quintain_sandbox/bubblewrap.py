"""The provider `bubblewrap`: namespaces, seccomp, control groups and a user of its own, without a
daemon.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from quintain import InfrastructureError
from quintain.errors import UsageError

from .axes import AXES, Axes, weakest
from .box import BubblewrapBox, Setting
from .bpf import seccomp_filter
from .cgroups import Controllers, own_controllers, remove_stale
from .launcher import Launcher
from .local import AS_ROOT, GROUPS, NO_FILTER, LocalSandbox
from .opened import Box
from .probe import measure
from .program import Program
from .protocol import SLOTS
from .warm import IMPORTS, WarmInterpreters

MAX_WARM = 63
INSTALL = "install bubblewrap: apt-get install bubblewrap"
ALLOW = (
    "allow user namespaces: sysctl -w user.max_user_namespaces=15000 "
    "kernel.unprivileged_userns_clone=1"
)


class Bubblewrap(LocalSandbox):
    """Each run gets new namespaces; the program is pid 1 of its own, so all of its processes end
    with it.

    Attributes:
        slots: programs at one time; each has a user id of its own on the host where the trainer is
            root.
        enforce: axes that must be enforced on this machine, else the service does not start. Leave
            out of it what you can do without; the default is all.
        read_only: further host paths that programs may read, such as a folder with packages.
        venv: virtual environment whose ``python3`` and packages programs have, read-only; empty:
            the system's.
        warm: interpreters that wait for ``python3 -I FILE`` or ``python3 -I -c CODE``, each for one
            program; a run that finds none waiting starts its own. Each takes about 20 MB.
        imports: modules that they have imported.
    """

    start_fix = ALLOW
    _setting: Setting | None = None
    _warm: WarmInterpreters | None = None

    def __init__(
        self,
        *,
        slots: int = SLOTS,
        enforce: Axes = tuple(AXES),
        read_only: Sequence[str] = (),
        venv: str = "",
        warm: int = 0,
        imports: Sequence[str] = tuple(IMPORTS),
    ) -> None:
        if not 0 <= warm <= MAX_WARM:
            raise UsageError(f"bubblewrap.warm is {warm}; expected 0 to {MAX_WARM}")
        super().__init__(slots=slots, enforce=enforce, read_only=read_only, venv=venv)
        self.warm, self.imports = warm, tuple(imports)

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that the program bwrap is there; see `quintain.Service.check_available`."""
        _program()

    def prepare(self) -> None:
        """Find out what this machine gives to boxes, and start the launcher; see
        `ProbedSandbox.prepare`.
        """
        self._setting = _setting(self.read_only, self.environment)

    async def settle(self) -> None:
        """Start the interpreters that wait, and measure what holds in them; the weaker level
        counts.
        """
        if not self.warm:
            return
        self._warm = WarmInterpreters(self._cold_box, self.warm, self.imports)
        self._warm.patient = True
        guarantees = await measure(self.run)
        self._warm.patient = False
        self.guarantees = {
            axis: weakest(level, guarantees[axis]) for axis, level in self.guarantees.items()
        }
        await asyncio.to_thread(self._warm.wait_until_full)

    def release(self) -> None:
        """Close the interpreters that wait, and the launcher; see `ProbedSandbox.release`."""
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.close()
        setting, self._setting = self._setting, None
        if setting is not None:
            setting.launcher.close()

    def open_box(self, program: Program) -> Box:
        """Take a waiting interpreter that fits *program*, or else open a new box; see
        `ProbedSandbox.open_box`.
        """
        box = None if self._warm is None else self._warm.take(program)
        return box or self._cold_box(program)

    def _cold_box(self, program: Program) -> BubblewrapBox:
        return cast(BubblewrapBox, super().open_box(program))

    def box(
        self, program: Program, user: int | None, give_back: Callable[[], None]
    ) -> BubblewrapBox:
        """Start *program* under bubblewrap; see `LocalSandbox.box`."""
        if self._setting is None:
            give_back()
            raise self.not_started()
        return BubblewrapBox(self._setting, program, user, give_back)

    def fix(self, axis: str) -> str:
        """Return the advice for *axis*; see `ProbedSandbox.fix`."""
        if axis in ("memory", "forks"):
            return GROUPS
        if axis == "users":
            return AS_ROOT
        if axis == "syscalls":
            return NO_FILTER
        return super().fix(axis)


def _program() -> str:
    bwrap = shutil.which("bwrap")
    if platform.system() != "Linux" or bwrap is None:
        raise InfrastructureError(f"bubblewrap needs Linux and bwrap; {INSTALL}")
    return os.path.abspath(bwrap)


def _setting(read_only: Iterable[str], environment: Mapping[str, str]) -> Setting:
    bwrap = _program()
    controllers = own_controllers() if Path("/proc/self/cgroup").exists() else Controllers()
    remove_stale(controllers)
    return Setting(
        bwrap=bwrap,
        launcher=Launcher(),
        seccomp=seccomp_filter(),
        controllers=controllers,
        read_only=tuple(read_only),
        environment=environment,
    )
