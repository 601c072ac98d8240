"""What a run says where no sample is right, or where "right" says nothing about its reward."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quintain import Rollout, reward
from quintain.recipe import Recipe
from quintain.recipe.advice import Advice, labels
from quintain.recipe.plan import RunPlan
from quintain.run.remarks import remarks

from ..run.everything import Talk

HALF, STARS, MINUS, OPEN = (0.0, 0.5), (1.0, 5.0), (-10.0, 0.0), (-math.inf, math.inf)


def plan_of(**tables: Any) -> RunPlan:
    return RunPlan.of(Recipe.of({"environments": [{"use": "arithmetic"}], **tables}))


def talk(declared: tuple[float, float] | None) -> Any:
    @reward(range=declared)
    def scored(rollout: Rollout) -> float:
        return 0.0

    return Talk().overridden(reward=scored)


RESTS: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": {"use": "kto"}}, "advantage desirable of kto"),
    ({"algorithm": {"use": "rft"}}, "advantage winners of rft"),
    ({"stop": {"accuracy": 0.9}}, "stop.accuracy"),
    ({"algorithm": {"args": {"plan": {"drop_solved": 0.9}}}}, "plan.drop_solved"),
    ({"algorithm": {"args": {"plan": {"difficulty_samples": 4}}}}, "plan.difficulty_range"),
    ({"algorithm": {"args": {"plan": {"order": "hard_first"}}}}, 'plan.order = "hard_first"'),
]


@pytest.mark.parametrize(("tables", "name"), RESTS)
@pytest.mark.parametrize(
    ("declared", "whose"),
    [(HALF, "no"), (MINUS, "no"), (STARS, "every"), ((0.0, 1.0), ""), (OPEN, ""), (None, "")],
)
def test_what_rests_on_right_samples_is_named_at_the_start(
    tables: dict[str, Any], name: str, declared: tuple[float, float] | None, whose: str
) -> None:
    found = [line for line in remarks(plan_of(**tables), [talk(declared)]) if name in line]

    assert len(found) == bool(whose)
    assert all(f"which {whose} sample of Talk has" in line and "; set " in line for line in found)


def test_a_threshold_that_the_reward_reaches_is_silent() -> None:
    """`success` of kto within the range; the share on the screen still says nothing."""
    plan = plan_of(algorithm={"use": "kto", "args": {"advantage": {"success": 0.25}}})
    found = remarks(plan, [talk(HALF)])

    assert labels(plan)["advantage desirable of kto"][0] == 0.25
    assert not [line for line in found if "desirable" in line]
    assert [line for line in found if "no sample is, so the share of right samples" in line]


def test_the_key_that_is_named_exists() -> None:
    for tables, name in RESTS[:2]:
        _, key = labels(plan_of(**tables))[name]
        table = {**tables["algorithm"], "args": {"advantage": {"success": 0.25}}}
        assert key == "algorithm.args.advantage = { success = ... }"
        assert labels(plan_of(algorithm=table))[name][0] == 0.25


NOTHING = {"accuracy": 0.0, "tasks": 24}


STEP = {"success": 0.0, "samples": 32, "reward.outcome.spread": 0.0}


@pytest.mark.parametrize(
    ("measured", "found"),
    [
        ([NOTHING, NOTHING], "0 of 48 held-out samples are right before training"),
        ([NOTHING, {}], "0 of 24 held-out samples are right before training"),
        ([NOTHING, {"accuracy": 0.1, "tasks": 24}], ""),
        ([{"accuracy": None}], ""),
        ([], ""),
    ],
)
def test_nothing_right_before_training_is_told(measured: list[dict[str, Any]], found: str) -> None:
    text = Advice(plan_of(), [talk((0.0, 1.0))]).before(*measured)

    assert text.startswith(found)
    assert bool(text) == bool(found)
    assert "\n" not in text  # samples of training may be right: what helps comes after step 1


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "quintain-starter/smollm2-135m"])
def test_nothing_right_in_the_first_step_names_what_to_do(model: str) -> None:
    (text,) = Advice(plan_of(model={"name": model}), [talk((0.0, 1.0))]).after(STEP)

    assert text.startswith("0 of 32 samples of step 1 are right")
    for words in ("info arithmetic", f"sft arithmetic --model {model}", "--temperature"):
        assert words in text
    assert "model.start" not in text


def test_the_default_model_extends_its_warm_start() -> None:
    (text,) = Advice(plan_of(), [talk((0.0, 1.0))]).after(STEP)
    assert "model.start.args" in text


def test_it_is_said_once_and_not_of_a_reward_that_cannot_be_right() -> None:
    advice = Advice(plan_of(), [talk((0.0, 1.0))])

    assert [*advice.after(STEP)] != [""]
    assert [*advice.after(STEP)] == [""]
    assert Advice(plan_of(), [talk(HALF)]).before(NOTHING) == ""
    assert next(Advice(plan_of(), [talk(None)]).after(STEP)).startswith("0 of 32 samples of step 1")


@pytest.mark.parametrize(
    ("success", "spread", "told"),
    [(0.0, 0.1, True), (1.0, 0.1, True), (0.5, 0.1, False), (1.0, 0.0, False)],
)
def test_labels_that_the_first_step_cannot_tell_apart(
    success: float, spread: float, told: bool
) -> None:
    """Of a reward without a range."""
    advice = Advice(plan_of(algorithm={"use": "kto"}), [talk(None)])
    metrics = {"success": success, "samples": 8, "reward.outcome.spread": spread}

    assert bool([line for line in advice.after(metrics) if "desirable" in line]) is told


def test_checkpoints_that_are_not_measured_are_told() -> None:
    tables = {"evaluation": {"every": 2}, "checkpoint": {"every": 3}}
    told = [
        line for line in remarks(plan_of(**tables), []) if "checkpoints are saved each 3" in line
    ]

    assert len(told) == 1
