"""The service `sandbox`: the best provider of this machine, which also fills a slot of that name
without a recipe.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from quintain.errors import InfrastructureError, UsageError, did_you_mean

from .axes import AXES, Axes, Guarantee
from .bubblewrap import Bubblewrap
from .docker import Docker
from .landlock import Landlock
from .opened import Box
from .program import Program
from .protocol import SLOTS, ProbedSandbox

log = logging.getLogger("quintain.sandbox")
PROVIDERS: Mapping[str, Callable[..., ProbedSandbox]] = {
    "docker": Docker,
    "bubblewrap": Bubblewrap,
    "landlock": Landlock,
}
"""In the order of preference. What is no sandbox is not among them."""


class BestSandbox(ProbedSandbox):
    """The first of `providers` that starts and enforces `enforce`. It logs the choice, and why
    others were rejected.

    Attributes:
        slots: programs at one time.
        enforce: axes that must be enforced on this machine, else the service does not start; the
            default is all.
        providers: which to try, in this order.
        docker, bubblewrap, landlock: further arguments of that provider, such as ``image`` or
            ``warm``.
    """

    chosen: ProbedSandbox | None = None

    def __init__(
        self,
        *,
        slots: int = SLOTS,
        enforce: Axes = tuple(AXES),
        providers: Sequence[str] = tuple(PROVIDERS),
        docker: Mapping[str, Any] | None = None,
        bubblewrap: Mapping[str, Any] | None = None,
        landlock: Mapping[str, Any] | None = None,
    ) -> None:
        for name in providers:
            if name not in PROVIDERS:
                raise UsageError(f"sandbox.providers has {name!r}{did_you_mean(name, PROVIDERS)}")
        super().__init__(slots=slots, enforce=enforce)
        self.providers = tuple(providers)
        provider_settings = {"docker": docker, "bubblewrap": bubblewrap, "landlock": landlock}
        self._services = {
            name: self._configured(name, provider_settings[name] or {}) for name in self.providers
        }

    def _configured(self, name: str, settings: Mapping[str, Any]) -> ProbedSandbox:
        known = inspect.signature(PROVIDERS[name]).parameters
        for argument in settings:
            if argument not in known:
                raise UsageError(f"sandbox.{name} has {argument!r}{did_you_mean(argument, known)}")
        return PROVIDERS[name](**{"slots": self.slots, "enforce": self.enforce, **settings})

    async def __aenter__(self) -> Self:
        reasons = []
        for name, service in self._services.items():
            try:
                await service.__aenter__()
            except (InfrastructureError, UsageError) as e:
                reasons.append((name, " ".join(str(e).split()), isinstance(e, UsageError)))
                continue
            self.chosen = service
            self._programs = service._programs
            self.guarantees = service.guarantees
            self.sessions, self.loopback = service.sessions, service.loopback
            log.log(logging.WARNING if reasons else logging.INFO, "%s", self._choice(name, reasons))
            return self
        error = UsageError if any(unmet for _, _, unmet in reasons) else InfrastructureError
        lines = "".join(f"\n  {name}: {reason}" for name, reason, _ in reasons)
        raise error(
            f"no sandbox of this machine enforces {', '.join(self.enforce) or 'anything'}:{lines}"
        )

    def _choice(self, name: str, reasons: Sequence[tuple[str, str, bool]]) -> str:
        weak = [
            f"{axis} {level}"
            for axis, level in self.guarantees.items()
            if level is not Guarantee.ENFORCED
        ]
        kept = (
            "all guarantees enforced"
            if not weak
            else "all guarantees enforced but " + ", ".join(weak)
        )
        passed = "".join(f"; not {other}: {reason[:200]}" for other, reason, _ in reasons)
        return f"sandbox: {name}, {kept}{passed}"

    async def __aexit__(self, *exc: object) -> None:
        chosen, self.chosen, self._programs = self.chosen, None, None
        if chosen is not None:
            await chosen.__aexit__(*exc)

    def open_box(self, program: Program) -> Box:
        """Open a box of the chosen provider; see `ProbedSandbox.open_box`."""
        if self.chosen is None:
            raise self.not_started()
        return self.chosen.open_box(program)

    @property
    def name(self) -> str:
        """The chosen provider's name in messages."""
        return "sandbox" if self.chosen is None else self.chosen.name

    def fix(self, axis: str) -> str:
        """Return what the chosen provider advises; see `ProbedSandbox.fix`."""
        return super().fix(axis) if self.chosen is None else self.chosen.fix(axis)
