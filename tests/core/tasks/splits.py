"""Environments with splits of every kind: finite, endless, repeating, broken."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from quintain.errors import RecipeError
from quintain.interfaces.curriculum import Curriculum
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.types.rollout import Rollout
from quintain.types.task import Task


@reward
def right(rollout: Rollout[Task, None]) -> float:
    return 1.0


class Finite(Environment[Task, None]):
    reward = right
    size: int = 5
    word: str = "f"

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{self.word}{i}", level=i % 4) for i in range(self.size))


class Endless(Environment[Task, None]):
    reward = right

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"e{i}", level=i * 7 % 10) for i in itertools.count())


class Repeating(Environment[Task, None]):
    reward = right

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"r{i % 3}", level=i % 3) for i in itertools.count())


class Broken(Environment[Task, None]):
    reward = right
    fault: str = "raise"

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(prompt="one")
        if self.fault == "raise":
            raise OSError("no such file")
        if self.fault == "usage":
            raise RecipeError("path is wrong")
        yield "two"  # type: ignore[misc]


def prompts(c: Curriculum, count: int) -> list[str]:
    return [str(p.task.prompt) for p in c.pick(count)]
