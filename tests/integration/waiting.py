"""Environments whose episodes wait for something else than the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from quintain import Environment, Limits, Rollout, Score, Task, TokenEngine, need, reward


@reward(range=(0, 1))
def small_letter(rollout: Rollout[Any, Any]) -> float:
    """1 where the reply holds a letter from a to z."""
    return float(any("a" <= c <= "z" for c in rollout.reply))


class TwoTurns(Environment[Task, dict[str, int]]):
    """Two turns with a tool between them, which waits 0 to 4 times *pause* seconds by the number of
    the task.
    """

    reward = small_letter
    limits = Limits(turns=2)
    size: int = 24
    stuck: int = -1
    pause: float = 0.002

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(self.size))

    async def rollout(self, task: Task, agent: Any) -> dict[str, int]:
        number = int(task.prompt.rpartition(" ")[2])
        agent.user(task.prompt)
        await agent.turn()
        if number == self.stuck and task.prompt.startswith("train"):
            await asyncio.sleep(60)
        await asyncio.sleep(number % 5 * self.pause)
        agent.user("again")
        await agent.turn()
        return {"number": number}


class Late(TwoTurns):
    """One task in six, begun under the first weights, ends under the third ones."""

    engine: TokenEngine = need("policy")

    async def rollout(self, task: Task, agent: Any) -> dict[str, int]:
        number, first = int(task.prompt.rpartition(" ")[2]), self.engine.version == 0
        agent.user(task.prompt)
        await agent.turn()
        while first and number % 6 == 0 and self.engine.version < 3:  # noqa: ASYNC110 -- engines have no event for it
            await asyncio.sleep(self.pause)
        agent.user("again")
        await agent.turn()
        return {"number": number}


@reward(range=(-1, 2))
def by_turns(rollout: Rollout[Any, Any]) -> Score:
    """Scores per turn, a named part and a reason."""
    return Score(
        value=0.5,
        turns=(0.1, len(rollout.reply) / 300),
        parts={"length": len(rollout.reply) / 7},
        reason="né",
    )


class Reporting(TwoTurns):
    """Rollouts with everything that a record can have: metrics (one is not a number), turn scores,
    parts, branches, failures.
    """

    reward = by_turns
    limits = Limits(turns=3)

    async def rollout(self, task: Task, agent: Any) -> dict[str, int]:
        result = await super().rollout(task, agent)
        other = agent.fork("other")
        other.user("a branch")
        await other.turn()
        agent.metric(third=1 / 3, ratio=float("nan"), most=float("inf"))
        if result["number"] % 3 == 2:
            raise ValueError("out of order")
        return result


class Failing(TwoTurns):
    """Every fourth task fails, for no fault of the policy."""

    async def rollout(self, task: Task, agent: Any) -> dict[str, int]:
        result = await super().rollout(task, agent)
        if result["number"] % 4 == 3:
            raise ValueError("out of order")
        return result
