"""The provider `bubblewrap`: namespaces, seccomp, control groups and a user of its own, without a daemon."""

from __future__ import annotations

import asyncio
import os
import platform
import queue
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from quintain import InfrastructureError
from quintain.errors import UsageError

from .box import BubblewrapBox, Setting
from .bpf import seccomp_filter
from .cgroups import Controllers, own_controllers, remove_stale
from .launcher import Launcher
from .probe import measure
from .program import Program, ProgramLimits
from .protocol import AXES, Guarantee, ProbedSandbox, weakest
from .running import BESIDE, Box, Programs
from .warm import IMPORTS, WarmInterpreters

USERS = 1_900_000_000
"""First user id of the boxes: above those of users, services and containers."""
PER_PROCESS = 192
"""User ids of one trainer, by its process id: one for each box that it may have at one time."""
MAX_WARM = 63
MAX_SLOTS = PER_PROCESS - BESIDE - MAX_WARM - 1
INSTALL = "install bubblewrap: apt-get install bubblewrap"
ALLOW = "allow user namespaces: sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1"


class Bubblewrap(ProbedSandbox):
    """Each run gets new namespaces; the program is pid 1 of its own, so all of its processes end with it.

    Attributes:
        slots: programs at one time; each has a user id of its own on the host where the trainer is root.
        needs: axes that must be enforced on this machine, else the service does not start. Leave out of it what you
            can do without; the default is all.
        read_only: further host paths that programs may read, such as a folder with packages.
        warm: interpreters that wait for ``python3 -I FILE`` or ``python3 -I -c CODE``, each for one program; a run that
            finds none waiting starts its own. Each takes about 20 MB.
        imports: modules that they have imported.
    """

    def __init__(
        self,
        *,
        slots: int = os.cpu_count() or 1,
        needs: Sequence[str] = tuple(AXES),
        read_only: Sequence[str] = (),
        warm: int = 0,
        imports: Sequence[str] = tuple(IMPORTS),
    ) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise UsageError(f"bubblewrap.slots is {slots}; expected 1 to {MAX_SLOTS}")
        if not 0 <= warm <= MAX_WARM:
            raise UsageError(f"bubblewrap.warm is {warm}; expected 0 to {MAX_WARM}")
        for path in read_only:
            if not Path(path).is_absolute() or not Path(path).exists():
                raise UsageError(f"bubblewrap.read_only has {path!r}; expected an absolute path that exists")
        self.slots, self.needs, self.read_only = slots, tuple(needs), tuple(read_only)
        self.warm, self.imports = warm, tuple(imports)
        self._warm: WarmInterpreters | None = None
        self.guarantees: Mapping[str, Guarantee] = {}
        self._setting: Setting | None = None
        self._users: queue.LifoQueue[int | None] = queue.LifoQueue()

    async def __aenter__(self) -> Self:
        self._setting = _setting(self.read_only)
        self._users = queue.LifoQueue()
        for place in reversed(range(PER_PROCESS)):
            self._users.put(_user(place))
        self.programs = Programs(self.slots, self.open_box)
        try:
            await self.run({}, ["/bin/sh", "-c", ":"], limits=ProgramLimits(seconds=30))
            self.guarantees = await measure(self)
        except InfrastructureError as e:
            await self.__aexit__()
            raise InfrastructureError(f"{e}\n{self.fix('filesystem')}") from e
        except OSError as e:
            await self.__aexit__()
            raise InfrastructureError(f"the canaries of the sandbox cannot be prepared: {e}") from e
        except BaseException:
            await self.__aexit__()
            raise
        try:
            if self.warm:
                await self._warm_up()
            self.require(self.needs)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _warm_up(self) -> None:
        """Start the interpreters that wait, and measure what holds in them; the weaker level counts."""
        self._warm = WarmInterpreters(self._cold_box, self.warm, self.imports)
        self._warm.patient = True
        guarantees = await measure(self)
        self._warm.patient = False
        self.guarantees = {axis: weakest(level, guarantees[axis]) for axis, level in self.guarantees.items()}
        await asyncio.to_thread(self._warm.wait_until_full)

    async def __aexit__(self, *exc: object) -> None:
        await self.close_programs()
        warm, self._warm = self._warm, None
        if warm is not None:
            await asyncio.to_thread(warm.close)
        setting, self._setting = self._setting, None
        if setting is not None:
            await asyncio.to_thread(setting.launcher.close)

    def open_box(self, program: Program) -> Box:
        """See `ProbedSandbox.open_box`."""
        box = None if self._warm is None else self._warm.take(program)
        return box or self._cold_box(program)

    def _cold_box(self, program: Program) -> BubblewrapBox:
        if self._setting is None:
            raise InfrastructureError("bubblewrap is not started")
        users = self._users
        user = users.get()
        return BubblewrapBox(self._setting, program, user, lambda: users.put(user))

    def fix(self, axis: str) -> str:
        if axis in ("memory", "forks"):
            return (
                "no writable control group for it: run as root, or under "
                "'systemd-run --user --scope -p Delegate=yes' in a subgroup with memory and pids"
            )
        if axis == "users":
            return "run the trainer as root: only root can give each box a user of its own"
        if axis == "syscalls":
            return f"needs seccomp filters in the kernel (CONFIG_SECCOMP_FILTER) of {platform.machine()}"
        return f"{INSTALL}; {ALLOW}"


def _setting(read_only: Iterable[str]) -> Setting:
    bwrap = shutil.which("bwrap")
    if platform.system() != "Linux" or bwrap is None:
        raise InfrastructureError(f"bubblewrap needs Linux and bwrap; {INSTALL}")
    controllers = own_controllers() if Path("/proc/self/cgroup").exists() else Controllers()
    remove_stale(controllers)
    return Setting(
        bwrap=os.path.abspath(bwrap),
        launcher=Launcher(),
        seccomp=seccomp_filter(),
        controllers=controllers,
        read_only=tuple(read_only),
    )


def _user(place: int) -> int | None:
    """The host's user id of a box: only root can change to another one."""
    if os.geteuid() != 0:
        return None
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = max(int(first) + int(count) - 1 for first, _, count in ranges)
    room = min(USERS, last - (1 << 16)) if last > (1 << 17) else last - (1 << 14)
    places = max(1, (last - room) // PER_PROCESS - 1)
    return None if room <= 0 else room + os.getpid() % min(places, 1_000_000) * PER_PROCESS + place
