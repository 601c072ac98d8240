"""Environments for tests that name them by file, as users do: hence no relative imports here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward
from quintain.interfaces.environment import Demonstration
from quintain.interfaces.service import need


@reward(range=(0, 1))
def says_it(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == rollout.task.answer)


@reward(range=(0, 1))
def small_letter(rollout: Rollout[Task, None]) -> float:
    return float(any("a" <= c <= "z" for c in rollout.reply))


class Echo(Environment[Task, None]):
    """Say *word*; worked examples show it."""

    reward = says_it
    system = "Be brief."
    word: str = "ab"

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(40):
            yield Task(prompt=f"{split} {i}", answer=self.word)

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=self.word)


class Book:
    """A service: knows the word."""

    def __init__(self, word: str = "ab") -> None:
        self.word = word


class Told(Echo):
    """Echo, of a word that a service knows."""

    book: Any = need("book")

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=self.book.word)


class Talk(Environment[Task, None]):
    """Two questions; nothing shows how to answer."""

    reward = says_it
    limits = Limits(turns=2)

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(prompt="2+2?", answer="4")

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        await agent.turn()
        agent.user("Sure?")
        await agent.turn()


class Babble(Environment[Task, None]):
    """Say a small letter: random weights over bytes do so now and then."""

    reward = small_letter
    limits = Limits(turns=1, tokens=4)

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(200):
            yield Task(prompt=f"{split} {i}", answer="a")
