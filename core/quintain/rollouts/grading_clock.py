"""How long rewards take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class GradingClock:
    """The time that rewards take: the sum over rollouts, and the time in which any ran, where
    overlaps count once.

    A reward that waits, such as for a slot of a sandbox, takes time. Used by one event loop at a
    time.
    """

    def __init__(self) -> None:
        self._running = 0  # rewards
        self._rollouts = 0  # that got their first score
        self._began = 0.0  # when the first of those that run began
        self._busy = 0.0  # seconds in which any ran
        self._total = 0.0  # seconds of all, overlaps counted for each

    @contextmanager
    def measure(self, rollouts: int) -> Iterator[None]:
        """Count the time of the block, in which *rollouts* get their first score."""
        began = time.monotonic()
        if not self._running:
            self._began = began
        self._running += 1
        try:
            yield
        finally:
            ended = time.monotonic()
            self._running -= 1
            self._rollouts += rollouts
            self._total += ended - began
            if not self._running:
                self._busy += ended - self._began

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the time since the last call; empty if no reward ran."""
        # Under a schedule that runs ahead, rewards still run when a step ends. Their time up to now
        # belongs to this step, the rest to the next.
        if self._running:
            now = time.monotonic()
            self._busy += now - self._began
            self._began = now
        metrics = {"grading.seconds": self._busy} if self._busy else {}
        if self._rollouts:
            metrics["grading.seconds_per_rollout"] = self._total / self._rollouts
        self._busy = 0.0
        self._total = 0.0
        self._rollouts = 0
        return metrics
