"""Environments with tools, with several players, and with a service, which verifiers plays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from quintain import (
    Agent,
    Environment,
    Limits,
    Rollout,
    Score,
    Service,
    Task,
    need,
    reward,
)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the calls added up to."""

    total: int
    calls: int


@reward
def right_total(rollout: Rollout[Task, Counted]) -> Score:
    result = rollout.result
    return Score(value=float(result.total == 5), parts={"calls": float(result.calls)})


class Sums(Environment[Task, Counted]):
    """Add two numbers by calls."""

    reward, limits = right_total, Limits(turns=8)

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="Add 2 and 3, one by one.", id=split)]

    async def rollout(self, task: Task, agent: Agent) -> Counted:
        added: list[int] = []

        def add(count: int) -> str:
            """Add a number to the sum.

            Args:
                count: the number.
            """
            added.append(count)
            return f"The sum is {sum(added)}."

        agent.user(str(task.prompt))
        await agent.run(add)
        return Counted(total=sum(added), calls=len(added))


@reward
def shares(rollout: Rollout[Task, str]) -> Score:
    return Score(value=0.75, players={"second": 0.25}, reason=rollout.result)


class Pair(Environment[Task, str]):
    """Two players speak in turn, each with its own messages."""

    reward, limits, system = shares, Limits(turns=8), "You are the first."

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="Say 1+1=?", id=split)]

    async def rollout(self, task: Task, agent: Agent) -> str:
        second = agent.player("second")
        agent.user(str(task.prompt))
        first = (await agent.turn()).reply
        second.system("You are the second.")
        second.user(f"They said {first}. Say 2+2=?")
        reply = (await second.turn()).reply
        agent.user(f"They said {reply}. Go on.")
        return (await agent.turn()).reply


class Noted(Service):
    """Writes a file when it ends."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        Path("ended.txt").touch()  # noqa: ASYNC240 - of a test


class Empty(Environment[Task, str]):
    """An environment with a service and without tasks."""

    reward = shares
    noted: Noted = need()

    def tasks(self, split: str) -> Iterable[Task]:
        return []
