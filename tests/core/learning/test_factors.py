"""Schedules of the learner's settings: values by step, and a step is that of the plain setting."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.errors import UsageError
from quintain.interfaces.factors import Factor
from quintain.learning import ALGORITHMS, Learner

from ..models.tiny import tiny_model
from . import batches

GRPO = ALGORITHMS["grpo"]
COSINE = {"cosine": (1.0, 0.1, 2)}


def weights_of(learner: Learner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learner.module.parameters()])


def learner_with(algorithm: Any = GRPO, **options: Any) -> Learner:
    return Learner(tiny_model("qwen3"), algorithm, **({"lr": 1e-3} | options))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"ramp": (1.0, 0.0, 4)}, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ({"ramp": (0.0, 2.0, 2)}, [0.0, 1.0, 2.0, 2.0]),
        ({"cosine": (1.0, 0.0, 4)}, [1.0, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0.0, 0.0]),
        ({"cosine": (0.5, 1.0, 1)}, [0.5, 1.0, 1.0]),
    ],
)
def test_values_by_step(table: dict[str, tuple[float, ...]], expected: list[float]) -> None:
    factor = Factor.parse("lr", table)

    assert [factor.at(step) for step in range(len(expected))] == pytest.approx(expected)


def test_an_adaptive_factor_follows_the_divergence() -> None:
    factor = Factor.parse("kl.coefficient", {"adaptive": (0.1, 10.0)})

    assert factor.followed(1.0, 0.1) == 1.0
    assert factor.followed(1.0, 0.11) == pytest.approx(1.01)
    assert factor.followed(1.0, 9.0) == pytest.approx(1.02)  # by a fifth of a tenth at most
    assert factor.followed(1.0, 0.0) == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("key", "factors", "values"),
    [
        ("lr", [1.0, 0.55, 0.1], None),
        ("kl.coefficient", [1.0, 0.55, 0.1], lambda f: {"kl": {"coefficient": 0.04 * f}}),
        ("objective.low", [1.0, 0.55, 0.1], lambda f: {"objective": {"low": 0.2 * f}}),
    ],
)
def test_a_step_is_that_of_the_setting_itself(key: str, factors: list[float], values: Any) -> None:
    algorithm = GRPO.replace(epochs=2)
    scheduled = learner_with(algorithm, schedules={key: COSINE})
    plain = learner_with(algorithm)
    batch = batches.batch(groups=2, group_size=4)
    constant = learner_with(algorithm)
    for factor in factors:
        if values is None:
            plain.lr = 1e-3 * factor
        else:
            plain.algorithm = algorithm.replace(**values(factor))
        metrics = scheduled.step(batch)
        plain.step(batch)
        constant.step(batch)
        assert metrics[f"schedule.{key}"] == pytest.approx(factor)
        torch.testing.assert_close(weights_of(scheduled), weights_of(plain))
    assert not torch.equal(weights_of(scheduled), weights_of(constant))


def test_an_adaptive_coefficient_resumes() -> None:
    options: dict[str, Any] = {"schedules": {"kl.coefficient": {"adaptive": (1e-4, 1.0)}}}
    batch = batches.batch(groups=2, group_size=4)
    whole = learner_with(**options)
    whole.step(batch)
    whole.step(batch)
    continued = learner_with(**options)
    continued.load_state_dict(copy.deepcopy(whole.state_dict()))

    ours, theirs = whole.step(batch), continued.step(batch)

    assert ours["schedule.kl.coefficient"] == theirs["schedule.kl.coefficient"] != 1.0
    assert torch.equal(weights_of(whole), weights_of(continued))


@pytest.mark.parametrize(
    ("key", "table", "message"),
    [
        ("lr", {"rampe": (1, 0, 3)}, "expected { ramp = "),
        ("lr", {"ramp": (1, 0)}, "start, stop and a number of steps"),
        ("lr", {"ramp": (1, 0, 2.5)}, "start, stop and a number of steps"),
        ("lr", {"ramp": (1, -1, 2)}, "start, stop and a number of steps"),
        ("lr", {"adaptive": (0.1, 10)}, "only kl.coefficient does"),
        ("kl.coefficient", {"adaptive": (0, 10)}, "a token above 0, and at least one step"),
        ("kl.coefficient", {"adaptive": (0.1, 0.1)}, "a token above 0, and at least one step"),
        ("objective.hihg", {"ramp": (1, 0, 3)}, "did you mean 'objective.low'?"),
        ("advantage.epsilon", {"ramp": (1, 0, 3)}, "names no number of 'grpo'"),
    ],
)
def test_what_is_no_schedule_is_refused(key: str, table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        learner_with(schedules={key: table})


def test_a_coefficient_of_zero_is_refused() -> None:
    algorithm = GRPO.replace(kl=replace(GRPO.kl, where="none", coefficient=0.0))

    with pytest.raises(UsageError, match="multiplies 0"):
        learner_with(algorithm, schedules={"kl.coefficient": COSINE})


def test_values_that_a_piece_refuses_are_refused_before_the_first_step() -> None:
    algorithm = GRPO.replace(objective={"use": "ppo_clip", "low": 0.2, "high": 0.2, "dual": 3.0})

    with pytest.raises(UsageError, match="dual"):
        learner_with(algorithm, schedules={"objective.high": {"ramp": (1.0, 100.0, 50)}})
    both = {key: {"ramp": (1.0, 100.0, 50)} for key in ("objective.high", "objective.dual")}
    learner_with(algorithm, schedules=both)


def test_a_checkpoint_of_another_schedule_changes_nothing() -> None:
    kl: dict[str, Any] = {"kl.coefficient": {"adaptive": (1e-4, 1.0)}}
    batch = batches.batch(groups=2, group_size=4)
    adaptive = learner_with(schedules=kl)
    adaptive.step(batch)
    for schedules in ({}, {"kl.coefficient": {"ramp": (1.0, 0.0, 4)}}):
        other = learner_with(schedules=schedules)
        other.load_state_dict(copy.deepcopy(adaptive.state_dict()))
        assert other.step(batch).get("schedule.kl.coefficient", 1.0) == (0.75 if schedules else 1.0)


def test_services_given_again_leave_the_settings() -> None:
    learner = learner_with(schedules={"kl.coefficient": {"ramp": (1.0, 0.0, 1)}})
    batch = batches.batch(groups=2, group_size=4)
    learner.step(batch)
    learner.step(batch)
    learner.serve({})
    assert learner.algorithm is not None
    assert learner.algorithm.kl.coefficient == GRPO.kl.coefficient
