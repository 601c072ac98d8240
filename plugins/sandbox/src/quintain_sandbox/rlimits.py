"""The provider `rlimits`, which is no sandbox: limits and a user, for machines that have nothing
else. Asked for only.

This module is also a hook plugin: each step of a run that uses the provider has the alert
``unsafe_sandbox``.
"""

from __future__ import annotations

import logging
from typing import Any, Self

from quintain.errors import UsageError

from .axes import Axes
from .landlock import ConfinedSandbox
from .local import AS_ROOT, GROUPS
from .protocol import SLOTS

log = logging.getLogger("quintain.sandbox")
WARNING = (
    "UNSAFE: programs of the policy run without a sandbox (provider rlimits). They read every file "
    "that their user may read, use the network and reach every local server. Use docker, "
    "bubblewrap or landlock."
)
_running: list[Rlimits] = []
_warned: list[str] = []


class Rlimits(ConfinedSandbox):
    """Resource limits, a user of its own where the trainer is root, control groups where there are
    any. No isolation.

    Attributes:
        allow_unsafe: must be true: you accept that programs read the host's files and use its
            network.
        slots: programs at one time; each has a user id of its own on the host where the trainer is
            root.
        enforce: axes that must be enforced on this machine, else the service does not start; none
            by default.
    """

    def __init__(
        self,
        *,
        allow_unsafe: bool = False,
        slots: int = SLOTS,
        enforce: Axes = (),
    ) -> None:
        if not allow_unsafe:
            raise UsageError(
                "rlimits is no sandbox: programs read the host's files and use its network. Use "
                "bubblewrap, docker or landlock, or accept that with allow_unsafe = true"
            )
        super().__init__(slots=slots, enforce=enforce)

    async def __aenter__(self) -> Self:
        if not _warned:
            _warned.append(WARNING)
            log.warning(WARNING)
        await super().__aenter__()
        _running.append(self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self in _running:
            _running.remove(self)
        await super().__aexit__(*exc)

    def fix(self, axis: str) -> str:
        """Return the advice for *axis*; see `ProbedSandbox.fix`."""
        if axis in ("memory", "forks"):
            return GROUPS
        if axis == "users":
            return AS_ROOT
        if axis in ("time", "output"):
            return super().fix(axis)
        return "rlimits cannot: use docker, bubblewrap or landlock"


def quintain_on_step_measured(event: Any) -> None:
    """Mark each step of a run whose programs had no sandbox."""
    if _running:
        event.alerts["unsafe_sandbox"] = f"unsafe_sandbox: {WARNING}"
