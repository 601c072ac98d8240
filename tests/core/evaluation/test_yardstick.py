"""Yardsticks: scores that are reported beside the reward, never train, and never decide what
happens to a rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from quintain.console.metrics import held_out_metrics, rewards
from quintain.errors import InfrastructureError, PolicyFault, RewardFault
from quintain.evaluation.evaluation import evaluate
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import Reward, group_reward, reward
from quintain.interfaces.service import need
from quintain.learning.batch import batch_of
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import EnvironmentSpec
from quintain.recipe.tables import Recipe
from quintain.run.remarks import remarks
from quintain.types.rollout import Group, Rollout
from quintain.types.task import Task
from quintain_authoring import run_episode
from quintain_authoring.evaluate.report import to_json
from quintain_authoring.scripted import ScriptedEngine

TASK = Task(prompt="2 + 2 =", answer="4")


@reward(range=(0, 1), proxy=True)
def short(rollout: Rollout[Task, Any]) -> float:
    """A proxy: anything of one character is right."""
    return float(len(rollout.reply) == 1)


@reward(range=(0, 1))
def right(rollout: Rollout[Task, Any]) -> float:
    return float(rollout.reply == rollout.task.answer)


@reward(range=(0, 1))
def judged(rollout: Rollout[Task, Any], *, judge: Any = need()) -> float:
    return 1.0


@group_reward
def ranked(group: Sequence[Rollout[Task, Any]]) -> list[float]:
    return [float(i) for i, _ in enumerate(group)]


def failing(error: Exception) -> Reward:
    """A yardstick that always fails with *error*."""

    @reward
    def fails(rollout: Rollout[Task, Any]) -> float:
        raise error

    return fails


class Sums(Environment[Task, None]):
    """What is 2 + 2?"""

    reward = short
    yardstick = right

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt=f"{i} + 2 =", answer=str(i + 2)) for i in range(4)]


def test_it_is_scored_beside_the_reward_and_not_part_of_it() -> None:
    """What trains is outcome plus shaping, whatever the yardstick says."""
    for reply, outcome, yardstick in (("4", 1.0, 1.0), ("x", 1.0, 0.0), ("four", 0.0, 0.0)):
        played = run_episode(Sums(), TASK, reply)

        assert played.outcome
        assert played.yardstick
        assert played.outcome.total == outcome
        assert played.yardstick.total == yardstick
        assert played.total == outcome
        assert played.to_json()["yardstick"]["value"] == yardstick


def test_an_environment_without_one_has_none() -> None:
    class Plain(Sums):
        yardstick = None

    assert run_episode(Plain(), TASK, "4").yardstick is None


@pytest.mark.parametrize(
    "error", [RewardFault("no answer"), InfrastructureError("no server"), ValueError("a bug")]
)
def test_one_that_fails_is_missing_and_the_rollout_trains(error: Exception) -> None:
    """The outcome is known, so masking the rollout would lose it; the share without a yardstick is
    a metric.
    """
    played = run_episode(Sums().overridden(yardstick=failing(error)), TASK, "4")

    assert played.valid
    assert played.yardstick is None
    assert played.total == 1.0
    measured = run_episode(Sums(), TASK, "x")
    metrics = rewards([played, measured, measured])
    assert metrics["yardstick.mean"] == 0.0
    assert metrics["yardstick.missing"] == pytest.approx(1 / 3)


def test_a_fault_of_the_policy_under_the_yardstick_is_its_lowest_score() -> None:
    """It is not the outcome's fault: the episode keeps its ending."""
    played = run_episode(Sums().overridden(yardstick=failing(PolicyFault("unreadable"))), TASK, "4")

    assert played.valid
    assert not played.termination.early
    assert played.outcome
    assert played.outcome.total == 1.0
    assert played.yardstick
    assert played.yardstick.total == 0.0
    assert played.yardstick.reason == "unreadable"


def test_a_yardstick_may_compare_the_samples_of_a_group() -> None:
    """As any reward of a group, it is scored once the group is complete."""
    environment = Sums().overridden(yardstick=ranked)
    engine = ScriptedEngine(replies="4")
    result = asyncio.run(evaluate(environment, engine, tasks=1, samples=3))

    assert [r.yardstick.total for r in result.rollouts if r.yardstick] == [0.0, 1.0, 2.0]


def test_evaluations_report_it_with_an_interval() -> None:
    """A proxy of 100 % with a yardstick of 25 %: the interval is Wilson's, as that of accuracy."""
    engine = ScriptedEngine(replies="4")
    result = asyncio.run(evaluate(Sums(), engine, tasks=list(Sums().tasks("test"))))

    assert result.accuracy
    assert result.yardstick
    assert result.accuracy.value == 1.0
    assert result.yardstick.value == 0.25
    assert 0 < result.yardstick.low < 0.25 < result.yardstick.high < 1
    assert to_json(result)["yardstick"] == 0.25
    metrics = held_out_metrics([result, result], [1, 3])
    assert metrics["yardstick"] == pytest.approx(0.25)
    assert (
        result.yardstick.low
        < metrics["yardstick.low"]
        < 0.25
        < metrics["yardstick.high"]
        < result.yardstick.high
    )


@pytest.mark.parametrize(
    "first, second, kept",
    [(right, short, right), (short, short, None), (judged, short, None), (right, right, None)],
    ids="proxy_replaces proxy_before needs_a_service no_proxy".split(),
)
def test_what_a_proxy_replaces_becomes_the_yardstick(
    first: Reward, second: Reward, kept: Reward | None
) -> None:
    """A recipe that trains a verifiable environment by a judge keeps its own reward as the
    measure.
    """

    class Plain(Sums):
        reward = first
        yardstick = None

    assert Plain().overridden(reward=second).yardstick is kept
    assert Plain().overridden(reward=second, yardstick=judged).yardstick is judged


def test_combinations_of_a_proxy_are_proxies() -> None:
    """One term that can be earned without what is wanted is enough."""
    assert (0.5 * right + short).proxy
    assert short.clip(0, 1).proxy
    assert right.gate(short).proxy
    assert not (right + 0.1).proxy
    assert not ranked.proxy


def test_a_recipe_names_it_with_the_services_that_it_needs() -> None:
    table = f'{{ use = "{__file__}:Sums", yardstick = \'use("{__file__}:judged")\' }}'
    recipe = Recipe.parse(f'extends = "quickstart"\nenvironments = [{table}]')
    spec = EnvironmentSpec.of(recipe.environments[0])

    assert spec.yardstick is not None
    assert spec.slots == {"judge"}


def test_the_batch_is_the_same_without_it() -> None:
    """A score that trains would be no yardstick."""
    played = run_episode(Sums(), TASK, "4")
    without = played.replace(yardstick=None)

    with_it, without_it = (
        batch_of([Group(task=TASK, rollouts=(r,))], temperature=1.0, max_tokens=8)
        for r in (played, without)
    )
    assert played != without
    assert with_it == without_it
    assert with_it.tokens


def test_a_run_says_that_its_proxy_has_no_yardstick() -> None:
    """The remark names environment, reward and the line to write."""
    recipe = Recipe.parse('extends = "quickstart"')
    without = Sums().overridden()
    object.__setattr__(without, "yardstick", None)

    (remark,) = remarks(RunPlan.of(recipe), [Sums(), without])
    assert "Sums: its reward short is a proxy" in remark
    assert 'yardstick = "..." under [[environments]]' in remark


def test_the_interval_of_graded_yardsticks_is_that_of_a_mean() -> None:
    """Wilson's at the size of a proportion is several times too wide for scores that hardly differ
    between tasks.
    """
    graded = Sums().overridden(yardstick=reward(lambda r: 0.35 + 0.01 * (int(r.task.answer) % 2)))
    result = asyncio.run(
        evaluate(graded, ScriptedEngine(replies="4"), tasks=list(Sums().tasks("test")) * 10)
    )

    assert result.yardstick
    assert result.yardstick.high - result.yardstick.low < 0.01
    assert result.yardstick.samples == 40
    assert result.yardstick_missing == 0.0


def test_rollouts_without_a_yardstick_do_not_count_in_its_interval() -> None:
    """Half of the tasks fail: the estimate rests on the others, and the missing share is
    reported.
    """

    @reward(range=(0, 1))
    def even(rollout: Rollout[Task, Any]) -> float:
        if int(rollout.task.answer) % 2:
            raise RewardFault("no answer")
        return 1.0

    result = asyncio.run(
        evaluate(
            Sums().overridden(yardstick=even),
            ScriptedEngine(replies="4"),
            tasks=list(Sums().tasks("test")),
        )
    )
    assert result.yardstick
    assert result.yardstick.value == 1.0
    assert result.yardstick.samples == 2
    assert (
        held_out_metrics([result], [1])["yardstick.missing"]
        == 0.5
        == to_json(result)["yardstick_missing"]
    )
