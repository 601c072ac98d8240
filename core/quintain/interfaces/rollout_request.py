"""What is asked of the rollout runner: rollouts of one task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..types.task import Task
from .engine import Engine
from .environment import Environment


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A request for *group_size* rollouts of a task.

    Attributes:
        index: of the group, counted from the start of the run.
        visit: number of earlier groups of this task, so that a second one draws other samples.
        system: replaces the environment's system message.
        engine: replaces the context's engine.
        seed: of every episode, to replay one; ``None`` derives it.
        step: of the run, for its rewards; 0: the context's.
        first: the first prompt of each player, rendered once for the episodes that begin with equal
            messages.
    """

    environment: Environment[Any, Any]
    task: Task
    group_size: int
    name: str = ""
    index: int = 0
    visit: int = 0
    system: str = ""
    engine: Engine | None = None
    seed: int | None = None
    step: int = 0
    first: dict[str, list[Any]] = field(default_factory=dict, repr=False, compare=False)
