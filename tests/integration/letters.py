"""An environment that a tiny random model learns in seconds: say the letter a."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward


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


class SlowLetters(Letters):
    """What the policy chooses takes a second of the three that an episode has. It begins with a line
    in the file ``waits``, the wall clock. *blocks*: seconds for which it keeps the event loop before.
    """

    limits = Limits(seconds=3)
    size: int = 4
    blocks: float = 0.0

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        await agent.turn()
        with agent.policy_time():
            with Path("waits").open("a") as file:  # noqa: ASYNC230 -- a test reads it
                file.write(f"{time.time()}\n")
            if self.blocks:
                time.sleep(self.blocks)  # noqa: ASYNC251 -- which is what it is for
            await asyncio.sleep(1.0)
