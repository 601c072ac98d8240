"""The tool ``python``: an interpreter that lives as long as its episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from quintain import Environment, Limits, Reply, Rollout, Task, ToolCall, reward
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ScriptedEngine
from quintain_sandbox import Bubblewrap, ProgramLimits, python_tool

from .service import left_behind, started

LIMITS = ProgramLimits(
    seconds=60.0, cpu_seconds=30.0, memory=128 << 20, processes=32, output=10_000
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from started(slots=3)


@reward
def nothing(rollout: Rollout) -> float:
    return 0.0


def play(
    sandbox: Bubblewrap, *turns: list[str], episodes: int = 1, **settings: Any
) -> list[Rollout]:
    """Rollouts of a policy that runs the code of each turn, in one call per element."""

    class Computes(Environment[Task, None]):
        reward = nothing
        limits = Limits(turns=20)

        def tasks(self, split: str) -> list[Task]:
            return [Task(prompt="?")]

        async def rollout(self, task: Task, agent: Any) -> None:
            agent.user(task.prompt)
            async with sandbox.session(limits=LIMITS) as session:
                await agent.run(python_tool(session, **settings))

    said = [
        Reply(calls=tuple(ToolCall(name="python", arguments={"code": c}) for c in turn))
        for turn in turns
    ]
    environment, engine = Computes(), ScriptedEngine(replies=[*said, "done"])
    (task,) = environment.tasks("test")
    request = RolloutRequest(environment=environment, task=task, group_size=episodes)
    (group,) = asyncio.run(run_groups([request], RolloutContext(engine=engine, retries=0)))
    return list(group.rollouts)


def results(rollout: Rollout) -> list[str | None]:
    assert rollout.valid, rollout.termination
    assert not [call.error for turn in rollout.turns for call in turn.calls if call.error]
    return [call.result for turn in rollout.turns for call in turn.calls]


def test_names_stay_within_an_episode_and_die_with_it(sandbox: Bubblewrap) -> None:
    """The second call sees the first one's names; no episode sees another's, and nothing is left
    after the last.
    """
    rollouts = play(sandbox, ["'x' in globals()"], ["x = 41"], ["print(x); x + 1"], episodes=3)
    assert [results(rollout) for rollout in rollouts] == [["False", "[no output]", "41\n42"]] * 3
    deadline = time.monotonic() + 5.0
    while left := left_behind(None):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_what_goes_wrong_is_read_by_the_policy(sandbox: Bubblewrap) -> None:
    """Exceptions, exits and time limits are results: the episode continues, with a new interpreter
    where one ended.
    """
    (rollout,) = play(
        sandbox,
        ["x = 1", "1 / 0"],
        ["import os; os._exit(3)"],
        ["x"],
        ["open('f', 'w').write('kept'); y = 2\nwhile True: pass"],
        ["print(open('f').read()); y"],
        seconds=3.0,
    )
    first, error, exited, lost, late, kept = results(rollout)
    assert first == "[no output]"
    assert "ZeroDivisionError" in error
    assert "the interpreter ended and was started again" in exited
    assert "NameError: name 'x' is not defined" in lost
    assert "took too long" in late
    assert kept.startswith("kept")
    assert "NameError: name 'y'" in kept


def test_calls_of_one_turn_take_turns(sandbox: Bubblewrap) -> None:
    """They would run concurrently; the interpreter executes them in the order of the text."""
    (rollout,) = play(
        sandbox, ["import time; time.sleep(0.2); x = [1]", "x.append(2); x", "x.append(3); x"]
    )
    assert results(rollout) == ["[no output]", "[1, 2]", "[1, 2, 3]"]


def test_long_output_is_cut(sandbox: Bubblewrap) -> None:
    (rollout,) = play(sandbox, ["print('a' * 500)"], ["print('b' * 50_000)"], characters=100)
    short, long = results(rollout)
    assert short == "a" * 100 + "\n[400 more characters]"
    assert long.startswith("b" * 100 + "\n[")
