"""Which checkpoint of a run is its best, and what is said of the one that a command takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..types.rollout import are_equal

By = Literal["accuracy", "reward", "order", ""]


@dataclass(frozen=True, kw_only=True)
class HeldOutScore:
    """What an evaluation on held-out tasks found.

    Attributes:
        accuracy: share of right samples; *low* is the lower end of its interval.
        reward: mean outcome; ``None`` where it is not known.
        split: of the tasks.
    """

    accuracy: float
    low: float
    reward: float | None = None
    split: str = "held-out"

    @classmethod
    def of(cls, metrics: Mapping[str, Any], split: str) -> HeldOutScore | None:
        """Return the figures of `held_out_metrics` on *split*; ``None`` without an accuracy."""
        accuracy = metrics.get("accuracy")
        if accuracy is None:
            return None
        low, reward = metrics.get("low", accuracy), metrics.get("reward")
        return cls(accuracy=accuracy, low=low, reward=reward, split=split)

    def better_by(self, best: HeldOutScore | None) -> By:
        """Return what makes this better than the *best* so far; empty if it is not better.

        Rewards of 0 and 1 are the accuracy. Graded ones decide where the accuracy does not: it is
        the same, as with rewards that never reach 1 or always do, or differs by less than its
        interval. Where neither tells, the later one is better.
        """
        if best is None:
            return "reward" if self.graded else "accuracy"
        if self.reward is None or best.reward is None or not (self.graded or best.graded):
            if are_equal([self.accuracy, best.accuracy]):
                return "order"
            return "accuracy" if self.accuracy > best.accuracy else ""
        if self.accuracy < best.low:
            return ""
        if self.low > best.accuracy:
            return "accuracy"
        if are_equal([self.reward, best.reward]):
            return "order"
        return "reward" if self.reward > best.reward else ""

    @property
    def graded(self) -> bool:
        """Whether the reward says something else than the accuracy."""
        return self.reward is not None and not are_equal([self.reward, self.accuracy])

    def after(self, best: HeldOutScore | None) -> HeldOutScore:
        """Return this as the new best. The accuracy that *best* was sure of remains a floor, so that
        many small losses are no large one.
        """
        return self if best is None else replace(self, low=max(self.low, best.low))


def checkpoint_note(model: str | Path) -> str:
    """Return which checkpoint the folder *model* is of, and why it is taken; empty where it is that
    of none.
    """
    folder = Path(model).parent
    try:
        about = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
        step, measured = int(about["step"]), about.get("held_out")
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    if not measured:
        found = "it was not measured in training"
    else:
        split = measured.get("split", "held-out")
        found = f"{100 * measured['accuracy']:.1f} % of {split} tasks right"
        if measured["reward"] is not None:
            found += f", held-out reward {measured['reward']:.3g}"
    reasons = {
        "accuracy": "the best by held-out accuracy",
        "reward": "the best by held-out reward",
        "order": "the newest of equally good ones",
    }
    why = reasons.get(about.get("best_by", ""), "")
    return f"checkpoint of step {step} ({', '.join(part for part in (why, found) if part)})"
