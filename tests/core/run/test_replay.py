"""Episodes played again: the same environment, another engine, scored as the first time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest

from quintain import Agent, Environment, Limits, Rollout, Task, group_reward, reward
from quintain.errors import InfrastructureError, UsageError
from quintain.interfaces.engine import Engine
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.run.replays import Replay
from quintain.types.rollout import Group
from quintain.types.task import Message
from quintain_authoring import ScriptedEngine


@reward(range=(0, 1))
def guessed(rollout: Rollout[Any, Any]) -> float:
    return float(rollout.result == rollout.reply)


class Draws(Environment[Task, str]):
    """Draws a digit from its own generator; the result is the digit."""

    reward = guessed
    limits = Limits(turns=1)

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="which digit?", id="digit")]

    async def rollout(self, task: Task, agent: Agent) -> str:
        digit = str(agent.rng.randrange(10))
        agent.user(task.prompt)
        await agent.turn()
        return digit


@group_reward
def ranked(group: Sequence[Rollout[Any, Any]]) -> Sequence[float]:
    return [0.0 for _ in group]


def digit(messages: Sequence[Message], rng: Random) -> str:
    return str(rng.randrange(10))


def played(
    environment: Environment[Any, Any], context: RolloutContext, group_size: int = 4
) -> list[Rollout[Any, Any]]:
    request = RolloutRequest(
        environment=environment,
        task=next(iter(environment.tasks("train"))),
        group_size=group_size,
        name="draws",
    )
    (group,) = asyncio.run(run_groups([request], context))
    return list(group.rollouts)


def replays(
    environment: Environment[Any, Any], first: Sequence[Rollout[Any, Any]], context: RolloutContext
) -> Replay:
    made = Replay()
    made.remember(
        [Group(task=first[0].task, rollouts=tuple(first))], context, {"draws": environment}
    )
    return made


def test_the_environment_draws_the_same_and_the_engine_decides() -> None:
    context = RolloutContext(engine=ScriptedEngine(replies=digit), concurrency=2)
    first = played(Draws(), context)
    wanted: list[tuple[int, Engine]] = [
        (i, ScriptedEngine(replies=f"{first[i].result}")) for i in (2, 0, 2, 1)
    ]
    again = asyncio.run(replays(Draws(), first, context)(wanted))
    assert [r.result for r in again] == [first[i].result for i in (2, 0, 2, 1)]
    assert [r.total for r in again] == [1.0] * 4
    assert len({r.result for r in first}) > 1

    same = asyncio.run(replays(Draws(), first, context)([(i, context.engine) for i in range(4)]))
    assert [(r.reply, r.total, r.seed) for r in same] == [(r.reply, r.total, r.seed) for r in first]


def test_failures_are_retried_and_then_reported() -> None:
    context = RolloutContext(engine=ScriptedEngine(replies=digit), retries=1)
    first = played(Draws(), context, group_size=1)
    for fail_on, valid in (([1], True), ([1, 2], False)):
        engine = ScriptedEngine(replies=str(first[0].result), fail_on=fail_on)
        (again,) = asyncio.run(replays(Draws(), first, context)([(0, engine)]))
        assert again.valid == valid
        assert again.termination.attempts == 2


def test_a_reward_that_fails_is_no_zero() -> None:
    @reward
    async def flaky(rollout: Rollout[Any, Any]) -> float:
        raise InfrastructureError("no judge")

    context = RolloutContext(engine=ScriptedEngine(replies=digit))
    first = played(Draws(), context, group_size=1)
    broken = Draws().overridden(reward=flaky)
    (again,) = asyncio.run(replays(broken, first, context)([(0, context.engine)]))
    assert not again.valid
    assert again.outcome is None


def test_what_cannot_be_played_again_is_refused() -> None:
    context = RolloutContext(engine=ScriptedEngine(replies=digit))
    first = played(Draws(), context, group_size=1)

    def refused(made: Replay, reason: str) -> None:
        with pytest.raises(UsageError, match=reason):
            asyncio.run(made([(0, context.engine)]))

    refused(Replay(), "no batch yet")
    refused(
        replays(Draws().overridden(shaping=0.5 * ranked), first, context),
        "compares the samples of a group",
    )
    players = first[0].replace(
        transcripts={"": first[0].transcripts[""], "b": first[0].transcripts[""]}
    )
    refused(replays(Draws(), [players], context), r"players \['', 'b'\]")
    foreign = Replay()
    foreign.remember(
        [Group(task=first[0].task, rollouts=tuple(first))], context, {"others": Draws()}
    )
    refused(foreign, "no environment of this name")
