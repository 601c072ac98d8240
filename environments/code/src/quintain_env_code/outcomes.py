"""What can come of a solution, and the limits of its programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

from quintain_sandbox import ProgramLimits

from .tasks import CodeTask

Outcome = Literal[
    "passed", "failed", "error", "timeout", "memory", "output", "crashed", "unsupported", "no_code"
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
ENDS: Mapping[str, Outcome] = {"timeout": "timeout", "memory": "memory", "output": "output"}
"""Outcomes of programs that reached a limit, by status."""
STREAM = 64 << 20
"""Bytes that one sandbox may send in all."""
HEADROOM = 3
"""Wall-clock seconds for each second of CPU time."""
BUSIEST = 4.0
"""The most by which a loaded machine lengthens them: a program that waits for a core must not time
out.
"""
GRACE = 2.0
"""Seconds that what judges a solution gets beyond it, to start and to compare; more on a loaded
machine.
"""


def load() -> float:
    """Return the factor by which the machine's load lengthens limits on wall-clock time."""
    return min(BUSIEST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def limits_of(task: CodeTask) -> ProgramLimits:
    """Return the limits of a solution of *task*, or of one case of it."""
    return ProgramLimits(
        seconds=HEADROOM * task.cpu_seconds * load(),
        cpu_seconds=task.cpu_seconds,
        memory=task.memory_mib << 20,
        output=STREAM,
    )


def patient_limits(limits: ProgramLimits) -> ProgramLimits:
    """Return the limits of what judges a solution with *limits*: it lives a little longer, and may
    compute all that time.
    """
    seconds = limits.seconds + GRACE * load()
    return replace(limits, seconds=seconds, cpu_seconds=seconds)
