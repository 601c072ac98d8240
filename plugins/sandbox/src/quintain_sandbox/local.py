"""What providers share that run programs on the trainer's own kernel: slots, users of their own, the probe."""

from __future__ import annotations

import platform
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from quintain.errors import UsageError

from .axes import AXES, Axes
from .opened import Box
from .program import Program
from .protocol import SLOTS, ProbedSandbox
from .users import PER_PROCESS, give_back_user, take_user

MAX_SLOTS = PER_PROCESS // 3  # as many again may run beside them, and wait for a program
GROUPS = (
    "no writable control group for it: run as root, or under "
    "'systemd-run --user --scope -p Delegate=yes' in a subgroup with memory and pids"
)
NO_FILTER = f"needs seccomp filters in the kernel (CONFIG_SECCOMP_FILTER) of {platform.machine()}"
AS_ROOT = "run the trainer as root: only root can give each box a user of its own"


class LocalSandbox(ProbedSandbox):
    """A provider without a daemon.

    Attributes:
        slots: programs at one time; each has a user id of its own on the host where the trainer is root.
        enforce: axes that must be enforced on this machine, else the service does not start. Leave out of it what you
            can do without; the default is all.
        read_only: further host paths that programs may read, such as a folder with packages.
    """

    start_fix = NO_FILTER

    def __init__(self, *, slots: int = SLOTS, enforce: Axes = tuple(AXES), read_only: Sequence[str] = ()) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise UsageError(f"{self.name}.slots is {slots}; expected 1 to {MAX_SLOTS}")
        for path in read_only:
            if not Path(path).is_absolute() or not Path(path).exists():
                raise UsageError(f"{self.name}.read_only has {path!r}; expected an absolute path that exists")
        super().__init__(slots=slots, enforce=enforce)
        self.read_only = tuple(read_only)

    @abstractmethod
    def box(self, program: Program, user: int | None, give_back: Callable[[], None]) -> Box:
        """Start *program* as *user*; *give_back* is to be called when nothing of the user is left."""

    def open_box(self, program: Program) -> Box:
        """See `ProbedSandbox.open_box`."""
        user = take_user()
        return self.box(program, user, lambda: give_back_user(user))
