"""Orders of waiting episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from quintain import Rollout
from quintain.rollouts import RolloutRequest

SMOOTHING = 0.3
"""Weight of the newest duration in the moving average."""


class LongestFirst:
    """Starts the episode with the longest expected duration first (longest processing time first;
    Graham 1969).

    The expectation is a moving average over earlier rollouts of the task, else over those of its
    environment; episodes of an environment without any rollout come first. Equal ones start in the
    order of their tasks.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}

    def observe(self, rollout: Rollout[Any, Any]) -> None:
        """Take note of the duration of *rollout*."""
        for key in ((rollout.environment, rollout.task.id), (rollout.environment, "")):
            before = self._seconds.get(key, rollout.seconds)
            self._seconds[key] = before + SMOOTHING * (rollout.seconds - before)

    def choose(self, waiting: Sequence[tuple[RolloutRequest, int, int]]) -> int:
        """Return the position of the episode to start next."""
        return max(range(len(waiting)), key=lambda i: (self._expected(waiting[i][0]), -i))

    def _expected(self, request: RolloutRequest) -> float:
        known = self._seconds.get((request.name, request.task.id))
        return self._seconds.get((request.name, ""), math.inf) if known is None else known
