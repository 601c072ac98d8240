"""When a run ends, besides by an error or at once by its user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..console.metrics import TRAINING
from ..interfaces.events import Steering
from ..recipe.plan import StopPlan
from .held_out import HeldOutEvaluation
from .progress import RunProgress


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Compares what a run has done with the limits of its plan, after each step.

    Attributes:
        held_out: its last accuracy may be a limit.
        asked: what plugins ask for, such as to stop.
    """

    limits: StopPlan
    progress: RunProgress
    held_out: HeldOutEvaluation
    asked: Steering

    def finished(self) -> bool:
        """Return whether the run has reached its last step or a limit."""
        return bool(self.reason())

    def reason(self) -> str:
        """Return the keys that ended the run, with their values; empty before the end."""
        return " and ".join(self._reasons())

    def accurate(self) -> bool:
        """Return whether the last held-out accuracy reached ``stop.accuracy``."""
        limit = self.limits.accuracy
        accuracy = self.held_out.accuracy
        return limit is not None and accuracy is not None and accuracy >= limit

    def _reasons(self) -> Iterator[str]:
        if self.accurate():
            yield f"{self.held_out.shown_accuracy()} reached stop.accuracy"
        seconds = self.progress.seconds
        # Training began once the model was there: a warm start before it may take longer.
        since_start = sum(seconds.values()) - seconds.get("model", 0.0)
        training = sum(seconds.get(phase, 0.0) for phase in TRAINING)
        used_of = {
            "minutes": (since_start / 60, self.limits.minutes),
            "samples": (self.progress.samples, self.limits.samples),
            "tokens": (self.progress.tokens, self.limits.tokens),
            "seconds": (training, self.limits.seconds),
        }
        for key, (used, limit) in used_of.items():
            if limit is not None and used >= limit:
                yield f"stop.{key} = {limit:g}"
        if self.asked.stop:
            yield self.asked.stop
        if self.progress.step >= self.limits.steps:
            yield f"run.steps = {self.limits.steps}"
