"""The provider `remote`: sandboxes of Docker, Modal, Daytona, E2B, Kubernetes and others, which the
library harbor makes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from quintain.errors import InfrastructureError, UsageError

from ..axes import AXES, Axes, Guarantee
from ..opened import Box
from ..pool import ContainerPool, Shape
from ..probe import measure
from ..program import Program, ProgramLimits
from ..protocol import SLOTS, ProbedSandbox
from .box import RemoteBox
from .helper import Helper

log = logging.getLogger("quintain.sandbox")
USERS = range(20_000, 60_000)
"""User ids of programs, which also engines have that map users."""
OWN_MEMORY = 64 << 20
"""Bytes that a sandbox has beyond a program's, for what runs the program there."""
UNSEEN = ("filesystem", "processes", "users")
"""Axes that speak of the machine below a sandbox, of which a program there sees nothing."""
FACTS = """
import json, os
print(json.dumps([open("/proc/sys/kernel/random/boot_id").read().strip(), os.uname().machine]))
"""
INSIDE = (
    "the image needs python3 (3.8 or newer) and, for docker, bash; commands must run as root there"
)


@dataclass(frozen=True)
class Made:
    """A sandbox that waits for its program."""

    name: str
    alive: bool = True


class RemoteSandbox(ProbedSandbox):
    """Each program gets a sandbox of its own, of a service that harbor reaches. The probe runs
    there. What it cannot show of the machine below is *not known*.

    Programs have all of their input from the begin: there are no conversations and no sessions.

    Attributes:
        python: the interpreter that has harbor (Python 3.12 or newer), such as
            ``/opt/harbor/bin/python``. It has the variables of this process, credentials among
            them; programs have none of them.
        type: harbor's name of the service, such as ``docker``, ``modal``, ``daytona``, ``e2b``,
            ``gke``, or ``module:Class`` of your own.
        image: of the sandboxes; it needs ``python3``.
        options: what harbor calls ``kwargs`` of the service.
        network: whether programs may have a network. Off, a service that cannot switch it off is
            refused.
        slots: programs at one time.
        warm: sandboxes that wait for a program, started ahead.
        cpus, storage_mb: of each sandbox; ``None`` leaves it to the service. Its memory is that of
            the program.
        start_seconds: that a sandbox may take to start.
        grace: seconds that the way to the sandbox and back may take, beyond the program's time.
        enforce: axes that must be enforced, else the service does not start.
    """

    sessions = False
    conversations = False
    loopback = False
    start_fix = INSIDE

    def __init__(
        self,
        *,
        python: str,
        type: str,  # noqa: A002 - harbor's word
        image: str = "python:3.12-slim",
        options: Mapping[str, Any] | None = None,
        network: bool = False,
        slots: int = SLOTS,
        warm: int = 0,
        cpus: float | None = None,
        storage_mb: int | None = None,
        start_seconds: float = 600.0,
        grace: float = 60.0,
        enforce: Axes = tuple(AXES),
    ) -> None:
        if slots < 1 or warm < 0:
            raise UsageError(
                f"remote.slots is {slots} and remote.warm {warm}; expected 1, 0 or more"
            )
        if start_seconds <= 0 or grace <= 0:
            raise UsageError(
                f"remote.start_seconds is {start_seconds} and remote.grace {grace}; expected "
                "positive numbers"
            )
        super().__init__(slots=slots, enforce=enforce)
        self.python, self.warm, self.grace = python, warm, grace
        self.start_seconds, self.network = start_seconds, network
        self._settings = {
            "type": type, "image": image, "options": dict(options or {}), "network": network,
            "cpus": cpus, "storage_mb": storage_mb,
        }  # fmt: skip
        self._helper: Helper | None = None

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Ask harbor whether it takes the settings, and for credentials; see
        `quintain.Service.check_available`.
        """
        service = cls(**args)
        Helper(service.interpreter(), service._settings).close()

    def interpreter(self) -> str:
        """Return the path of the interpreter.

        Raises:
            UsageError: there is none.
        """
        path = Path(self.python).expanduser()
        if not path.exists():
            raise UsageError(
                f"remote.python is {self.python!r}, which does not exist: make a virtual "
                "environment of Python 3.12 or newer and pip install 'harbor[modal]' in it"
            )
        return str(path)

    def prepare(self) -> None:
        """Start the process of harbor; see `ProbedSandbox.prepare`."""
        self._helper = Helper(self.interpreter(), self._settings)
        self._prefix, self._numbers = f"quintain-{secrets.token_hex(4)}", count()
        self._users, self._lock = random.SystemRandom().randrange(len(USERS)), threading.Lock()
        self._removals = ThreadPoolExecutor(4, thread_name_prefix="remote removal")
        self._pool: ContainerPool[Made] = ContainerPool(self.warm, self._made, self._discard)

    async def settle(self) -> None:
        """Begin to start sandboxes ahead."""
        self._pool.fill(Shape(ProgramLimits().memory, 0, 0, 0))

    def release(self) -> None:
        """End all sandboxes and the process of harbor; see `ProbedSandbox.release`."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        self._pool.close()
        self._removals.shutdown()
        try:
            helper.close()
        except InfrastructureError as e:
            log.warning("%s", e)

    def open_box(self, program: Program) -> Box:
        """Start *program* in a sandbox of its own; see `ProbedSandbox.open_box`."""
        helper = self._helper
        if helper is None:
            raise self.not_started()
        made = self._pool.take(Shape(program.limits.memory, 0, 0, 0))
        return RemoteBox(
            helper, made.name, program, self._user(), self.grace, lambda _: self._discard(made)
        )

    def _user(self) -> int:
        with self._lock:
            self._users = (self._users + 1) % len(USERS)
            return USERS[self._users]

    def _made(self, shape: Shape) -> Made:
        """Start a sandbox."""
        helper = self._helper
        if helper is None:
            raise self.not_started()
        name = f"{self._prefix}-{next(self._numbers)}"
        memory_mb = math.ceil((shape.memory + OWN_MEMORY) / (1 << 20))
        helper.call(
            "start",
            name=name,
            memory_mb=memory_mb,
            limit=self.start_seconds,
            seconds=2 * self.start_seconds,
        )
        return Made(name)

    def _discard(self, made: Made) -> None:
        self._removals.submit(self._remove, made.name)

    def _remove(self, name: str) -> None:
        helper = self._helper
        try:
            if helper is not None:
                helper.call("stop", name=name, seconds=self.start_seconds)
        except InfrastructureError as e:
            log.warning("the sandbox %s may be left: %s", name, e)

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        return "remote"

    async def probe(self) -> dict[str, Guarantee]:
        """Run the canaries there, and leave out what they cannot see from there."""
        found = await measure(self.run)
        told = await self.run({}, ["python3", "-I", "-c", FACTS], limits=ProgramLimits(seconds=30))
        boot, machine = json.loads(told.stdout)
        if boot == _boot():
            return found  # a container of this machine, whose canaries see it
        found |= dict.fromkeys(UNSEEN, Guarantee.UNKNOWN)
        if not self.network and found["network"] is Guarantee.ABSENT:
            found["network"] = Guarantee.UNKNOWN  # an interface is there, and may lead nowhere
        if machine != os.uname().machine:
            found["syscalls"] = Guarantee.UNKNOWN  # other numbers of calls
        return found

    def fix(self, axis: str) -> str:
        """Return the advice for *axis*; see `ProbedSandbox.fix`."""
        if self.guarantees.get(axis) is Guarantee.UNKNOWN:
            return "a program there cannot see it: read what the service promises"
        if axis == "network":
            return "set remote.network = false, or use a service that has no network"
        if axis in ("output", "time"):
            return super().fix(axis)
        return f"{self._settings['type']} does not enforce it: use another service"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
