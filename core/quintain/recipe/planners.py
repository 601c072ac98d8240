"""What plans the memory and the disk of a run before anything is loaded: the contract of plugins that do
(entry-point group ``quintain.planners``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch

from ..errors import RunError
from ..registry.known import providers
from ..registry.lookup import current
from .plan import RunPlan

Phase = Literal["loading", "updating"]
"""What a run does when its memory ends; the engine itself says it of sampling."""


class Planner(Protocol):
    """An installed planner is asked about every run; `LearnerKind.bytes_per_parameter` tells it what
    a learner takes.
    """

    def check(self, plan: RunPlan, module: Any, device: torch.device) -> Sequence[str]:
        """Return what ``--dry-run`` says of the room that a run takes which trains *module*, without
        weights yet, on *device*; ``train`` itself shows the lines that begin with ``warning:``.

        Raises:
            UsageError: the run cannot fit.
        """
        ...

    def cache_room(self, plan: RunPlan, module: Any) -> int | None:
        """Return the bytes that keys and values may take on the GPU that *module* was loaded to;
        ``None`` on a CPU.
        """
        ...

    def advice(self, phase: Phase, plan: RunPlan, slots: int) -> Iterable[str]:
        """Return which keys lower the memory of *phase*, with their values of now; *slots* are the
        engine's.
        """
        ...


def check_plan(plan: RunPlan, module: Any, device: torch.device) -> list[str]:
    """Return what every installed planner says of a run, or what to install where none is.

    Raises:
        UsageError: the run cannot fit.
    """
    if not planners():
        return [f"memory and disk are not planned: pip install {' or '.join(providers('planner'))}"]
    return [line for planner in planners() for line in planner.check(plan, module, device)]


def planners() -> list[Planner]:
    """Return the installed planners."""
    return [current().resolve(component) for component in current().components("planner")]


def slots_of(plan: RunPlan, module: Any) -> int:
    """Return how many sequences the engine decodes at once beside the learner of *module*: as many
    as every planner has room for; without one, as many as on a CPU.
    """
    rooms = [planner.cache_room(plan, module) for planner in planners()]
    return plan.engine_slots(module, room=min((r for r in rooms if r is not None), default=None))


@contextmanager
def memory_advice(phase: Phase, plan: RunPlan, slots: int = 0) -> Iterator[None]:
    """Say in a `RunError` what the planners advise where the GPU is out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        advice = "; ".join(tip for one in planners() for tip in one.advice(phase, plan, slots))
        fixes = "; or ".join(filter(None, (advice, "take a smaller model")))
        reason = str(e).partition(". ")[0]
        raise RunError(f"the GPU is out of memory while {phase}: {fixes} ({reason})") from e
