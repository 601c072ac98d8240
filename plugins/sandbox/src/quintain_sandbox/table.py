"""The section ``sandboxes`` of ``quintain doctor``: what each provider enforces on this machine,
and how it would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from quintain.errors import QuintainError

from .axes import AXES, Guarantee
from .bubblewrap import Bubblewrap
from .docker import Docker
from .landlock import Landlock
from .protocol import ProbedSandbox
from .rlimits import Rlimits

PROVIDERS: Mapping[str, Callable[[], ProbedSandbox]] = {
    "docker": lambda: Docker(slots=2, warm=0, enforce=()),
    "bubblewrap": lambda: Bubblewrap(slots=2, enforce=()),
    "landlock": lambda: Landlock(slots=2, enforce=()),
    "rlimits": lambda: Rlimits(slots=2, allow_unsafe=True),
}
"""Name of the component to a service that starts whatever it enforces, in the order of
preference.
"""


def section() -> dict[str, list[str] | list[list[str]]]:
    """Start and probe the providers, one after another, because the probe of time needs an idle
    machine.
    """
    return asyncio.run(_section())


async def _section() -> dict[str, list[str] | list[list[str]]]:
    outcomes = {name: await _probed(make()) for name, make in PROVIDERS.items()}
    notes, levels = [], {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, str):
            notes.append(f"{name} does not start: {outcome}")
            levels[name] = dict.fromkeys(AXES, "-")
            continue
        levels[name] = {axis: str(level) for axis, (level, _) in outcome.items()}
        weak: dict[str, list[str]] = {}
        for axis, (level, fix) in outcome.items():
            if level is not Guarantee.ENFORCED:
                weak.setdefault(fix, []).append(axis)
        notes += [f"{name} ({', '.join(axes)}): {fix}" for fix, axes in weak.items()]
    rows = [[axis, *(levels[name][axis] for name in outcomes)] for axis in AXES]
    return {"columns": ["axis", *outcomes], "rows": rows, "notes": notes}


async def _probed(service: ProbedSandbox) -> str | dict[str, tuple[Guarantee, str]]:
    """Return level and fix of each axis, or in one line why *service* does not start."""
    try:
        async with service:
            return {axis: (service.guarantees[axis], service.fix(axis)) for axis in AXES}
    except QuintainError as e:
        return " ".join(str(e).split())
