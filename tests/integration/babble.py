"""An environment at which a tiny random model succeeds now and then: say a small letter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward


@reward(range=(0, 1))
def small_letter(rollout: Rollout[Any, Any]) -> float:
    """1 where the reply holds a letter from a to z."""
    return float(any("a" <= c <= "z" for c in rollout.reply))


class Babble(Environment[Task, Any]):
    """Say a small letter."""

    reward = small_letter
    limits = Limits(turns=1, tokens=8)
    size: int = 24

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a", level=i % 5) for i in range(self.size))


@reward(range=(0, 1))
def sum_of_characters(rollout: Rollout[Any, Any]) -> float:
    """A number that nearly always differs from reply to reply, so that a group has a gradient."""
    return sum(map(ord, rollout.reply)) % 11 / 10


class Varied(Babble):
    """Say something."""

    reward = sum_of_characters


class Flat(Babble):
    """No levels."""

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(self.size))


class Frail(Babble):
    """Every fourth task fails, for no fault of the policy."""

    async def rollout(self, task: Task, session: Any) -> Any:
        if int(task.prompt.rpartition(" ")[2]) % 4 == 3:
            raise ValueError("out of order")
        return await super().rollout(task, session)
