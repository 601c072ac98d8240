"""Environments and an engine that the tests of evaluations share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest

from quintain.cli import main
from quintain.evaluation.evaluation import Evaluation, evaluate
from quintain.interfaces.environment import Environment, control
from quintain.interfaces.reward import reward
from quintain.types.rollout import Rollout
from quintain.types.task import Message, Task
from quintain_authoring.scripted import ScriptedEngine


@reward(range=(0, 1))
def equal(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == str(rollout.task.answer))


class Doubling(Environment[Task, None]):
    """What is twice n?"""

    reward = equal
    size: int = 6
    label: str = "x"

    def tasks(self, split: str) -> Iterable[Task]:
        start = {"train": 0, "dev": 100, "test": 200}[split]
        return (
            Task(prompt=f"{n} + {n} = ?", answer=2 * n) for n in range(start, start + self.size)
        )


class Endless(Environment[Task, None]):
    reward = equal

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"say {n}", answer=n) for n in itertools.count())


class OnlyTrain(Doubling):
    def tasks(self, split: str) -> Iterable[Task]:
        return super().tasks(split) if split == "train" else []


class Undefined(Environment[Task, None]):
    reward = equal


def sometimes_right(messages: Sequence[Message], rng: Random) -> str:
    """Right in about half of the cases, depending on the seed of the turn alone."""
    n = int(messages[-1].content.split()[0])
    return str(2 * n + rng.choice([0, 0, 1, 2]))


def measured(environment: Environment[Any, Any], engine: Any = None, **settings: Any) -> Evaluation:
    async def run() -> Evaluation:
        async with engine or ScriptedEngine(replies=sometimes_right) as started:
            return await evaluate(environment, started, **settings)

    return asyncio.run(run())


class Hackable(Doubling):
    """Its reward can be fooled."""

    @control(scores="min")
    def shouting(self, task: Task, messages: Sequence[Message]) -> str:
        return f"{task.answer}"

    @control(scores="max")
    def careless(self, task: Task, messages: Sequence[Message]) -> str:
        return str(task.answer if task.answer < 404 else 0)

    @control()
    def idle(self, task: Task, messages: Sequence[Message]) -> str:
        return "7"

    @control()
    def crashing(self, task: Task, messages: Sequence[Message]) -> str:
        raise RuntimeError("oops")


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Status, output and errors of `quintain eval`."""
    status = main(["eval", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err
