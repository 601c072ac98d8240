"""What providers share that run programs on the trainer's own kernel: slots, users of their own,
the probe.
"""

from __future__ import annotations

import platform
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from quintain.errors import InfrastructureError, UsageError

from .axes import AXES, Axes
from .box import SYSTEM
from .opened import Box
from .program import ENVIRONMENT, Program, ProgramLimits
from .protocol import SLOTS, ProbedSandbox
from .users import PER_PROCESS, give_back_user, take_user

MAX_SLOTS = PER_PROCESS // 3  # as many again may run beside them, and wait for a program
GROUPS = (
    "no writable control group for it: run as root, or under 'systemd-run --user --scope -p "
    "Delegate=yes' in a subgroup with memory and pids"
)
NO_FILTER = f"needs seccomp filters in the kernel (CONFIG_SECCOMP_FILTER) of {platform.machine()}"
AS_ROOT = "run the trainer as root: only root can give each box a user of its own"


class LocalSandbox(ProbedSandbox):
    """A provider without a daemon.

    Attributes:
        slots: programs at one time; each has a user id of its own on the host where the trainer is
            root.
        enforce: axes that must be enforced on this machine, else the service does not start. Leave
            out of it what you can do without; the default is all.
        read_only: further host paths that programs may read, such as a folder with packages.
        venv: virtual environment whose ``python3`` and packages programs have, read-only; empty:
            the system's.
    """

    start_fix = NO_FILTER

    def __init__(
        self,
        *,
        slots: int = SLOTS,
        enforce: Axes = tuple(AXES),
        read_only: Sequence[str] = (),
        venv: str = "",
    ) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise UsageError(f"{self.name}.slots is {slots}; expected 1 to {MAX_SLOTS}")
        for path in read_only:
            if not Path(path).is_absolute() or not Path(path).exists():
                raise UsageError(
                    f"{self.name}.read_only has {path!r}; expected an absolute path that exists"
                )
        super().__init__(slots=slots, enforce=enforce)
        self.venv = venv
        self.read_only = (*read_only, *(_parts_of(venv, self.name) if venv else ()))
        path = f"{venv}/bin:{ENVIRONMENT['PATH']}" if venv else ENVIRONMENT["PATH"]
        self.environment: Mapping[str, str] = {**ENVIRONMENT, "PATH": path}
        """Variables of all programs."""

    async def _run_nothing(self) -> None:
        await super()._run_nothing()
        if not self.venv:
            return
        prefix = ["python3", "-I", "-c", "import sys; print(sys.prefix)"]
        result = await self.run({}, prefix, limits=ProgramLimits(seconds=30))
        if result.stdout.decode().strip() != self.venv:
            output = result.stderr.decode("utf-8", "replace").strip()[
                -300:
            ] or result.stdout.decode("utf-8", "replace")
            raise InfrastructureError(
                f"{self.name}.venv: programs cannot run {self.venv}/bin/python3: {output}\nAll "
                f"users must be able to read {' and '.join(_parts_of(self.venv, self.name))}: make "
                "it elsewhere, such as /usr/bin/python3 -m venv /opt/packages"
            )

    @abstractmethod
    def box(self, program: Program, user: int | None, give_back: Callable[[], None]) -> Box:
        """Start *program* as *user*; *give_back* is to be called when nothing of the user is
        left.
        """

    def open_box(self, program: Program) -> Box:
        """Open a box, as root for a user that no other box has; see `ProbedSandbox.open_box`."""
        user = take_user()
        return self.box(program, user, lambda: give_back_user(user))


def _parts_of(venv: str, provider: str) -> tuple[str, ...]:
    """Return the folder of a virtual environment, and that of the Python it was made from unless
    every box has it.

    Raises:
        UsageError: it is none.
    """
    settings = Path(venv, "pyvenv.cfg")
    if not Path(venv).is_absolute() or not settings.is_file():
        raise UsageError(
            f"{provider}.venv is {venv!r}; expected an absolute path to a virtual environment "
            f"(pyvenv.cfg)"
        )
    lines = dict(line.split("=", 1) for line in settings.read_text().splitlines() if "=" in line)
    home = next(
        (value.strip() for key, value in lines.items() if key.strip() == "home"), "/usr/bin"
    )
    prefix = Path(home).parent
    return (venv,) if any(prefix.is_relative_to(path) for path in SYSTEM) else (venv, str(prefix))
