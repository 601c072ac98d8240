"""An environment that a tiny random model learns in seconds: say the letter a."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain import Environment, Rollout, Task, reward


@reward(range=(0, 1))
def share_of_a(rollout: Rollout) -> float:
    return rollout.reply.count("a") / 8


@reward(range=(0, 1))
def some_a(rollout: Rollout) -> float:
    return float("a" in rollout.reply)


class Letters(Environment[Task, Any]):
    """Say as many a as you can."""

    reward = some_a
    shaping = 0.5 * share_of_a
    size: int = 16

    def tasks(self, split: str) -> Iterable[Task]:
        start = {"train": 0, "dev": 1000, "test": 2000}[split]
        return [Task(prompt=f"letters {start + i}", answer="a") for i in range(self.size)]
