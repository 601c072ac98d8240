"""Environments whose episodes wait for something else than the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward


@reward(range=(0, 1))
def small_letter(rollout: Rollout[Any, Any]) -> float:
    """1 where the reply holds a letter from a to z."""
    return float(any("a" <= c <= "z" for c in rollout.reply))


class TwoTurns(Environment[Task, dict[str, int]]):
    """Two turns with a tool between them, which waits by the number of the task."""

    reward = small_letter
    limits = Limits(turns=2)
    size: int = 24
    stuck: int = -1

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(self.size))

    async def rollout(self, task: Task, agent: Any) -> dict[str, int]:
        number = int(task.prompt.rpartition(" ")[2])
        agent.user(task.prompt)
        await agent.turn()
        if number == self.stuck and task.prompt.startswith("train"):
            await asyncio.sleep(60)
        await asyncio.sleep(number % 5 / 500)
        agent.user("again")
        await agent.turn()
        return {"number": number}


class Failing(TwoTurns):
    """Every fourth task fails, for no fault of the policy."""

    async def rollout(self, task: Task, agent: Any) -> dict[str, int]:
        result = await super().rollout(task, agent)
        if result["number"] % 4 == 3:
            raise ValueError("out of order")
        return result
