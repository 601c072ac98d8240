"""What `quintain check` says about a policy that stalls."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from quintain import Agent, Environment, Limits, Task, ToolSpec, as_tool
from quintain.errors import PolicyTimeout
from quintain_authoring import EnvironmentSuite
from quintain_authoring.stalling import stalling, unscored


async def look(word: str, times: int) -> str:
    """Look a word up."""
    return word * times


class Base(Environment[Task, None]):
    reward = unscored
    limits = Limits(turns=8)

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt="q")]


class Uses(Base):
    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.run(look)


class UsesOurs(Base):
    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.run(replace(as_tool(look), ours=True))


class Unbounded(Uses):
    limits = Limits(turns=None)


class NeverEnds(Uses):
    limits = Limits(turns=None, seconds=None)


class ByItself(Base):
    """Runs the calls itself, outside of the policy's time."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        while True:
            await agent.turn(as_tool(look))
            await asyncio.sleep(0)
            agent.user("done")


class ByItselfInTime(ByItself):
    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        while True:
            await agent.turn(as_tool(look))
            with agent.policy_time():
                await asyncio.sleep(0)
            agent.user("done")


class ByItselfFromSpecifications(Base):
    """Its tools run elsewhere, so it offers specifications alone."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        while True:
            await agent.turn(ToolSpec(name="look"))
            with agent.policy_time():
                await asyncio.sleep(0)
            agent.user("done")


class Early(Base):
    async def rollout(self, task: Task, agent: Agent) -> None:
        with agent.policy_time():
            agent.user(task.prompt)
            await agent.turn()


class Breaks(Base):
    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        for _ in range(3):
            await agent.turn()
        raise RuntimeError("the policy goes on for ever")


class BlamesThePolicy(Base):
    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        try:
            async with asyncio.timeout(0.05):
                await agent.turn()
        except TimeoutError as e:
            raise PolicyTimeout("too slow") from e


class Swallows(Base):
    """Makes the time limit of calls a failure of its own."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        try:
            async with asyncio.timeout(0.05):
                await agent.run(look)
        except TimeoutError as e:
            raise RuntimeError("the search is down") from e


def said(environment: type[Environment[Any, Any]]) -> str:
    class Suite(EnvironmentSuite):
        pass

    Suite.environment = environment()
    Suite.setup_class()
    try:
        return stalling(Suite())
    except AssertionError as e:
        return f"failed: {e}"
    finally:
        Suite.teardown_class()


@pytest.mark.parametrize(
    "environment, words",
    [
        (Uses, ""),
        (UsesOurs, ""),
        (Unbounded, "set Limits(turns=) or Limits(tokens=)"),
        (NeverEnds, "failed: a policy that never comes to an end never ends"),
        (ByItself, "waits outside of `agent.policy_time()`"),
        (ByItselfInTime, ""),
        (ByItselfFromSpecifications, ""),
        (Early, "failed: `agent.policy_time()` begins before the first turn"),
        (Breaks, "failed: a policy that never comes to an end ends with environment_error"),
        (BlamesThePolicy, "failed: an engine that takes for ever ends with policy_timeout"),
        (Swallows, "failed: a call that takes for ever ends with environment_error"),
    ],
)
def test_the_check_says_whose_failure_a_stalling_policy_is(
    environment: type[Environment[Any, Any]], words: str
) -> None:
    message = said(environment)

    assert (words in message) if words else message == ""


def test_the_check_costs_nothing_where_nothing_can_stall() -> None:
    """One turn, no limit of time: no part of a second is waited for."""

    class Plain(Base):
        limits = Limits(seconds=None)

    began = time.monotonic()
    assert said(Plain) == ""
    assert time.monotonic() - began < 1
