"""Ranks replay the experts of the engine, and measure the load of all together."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from quintain.learning import ALGORITHMS, Batch, Learner
from quintain_learners.fsdp import FsdpLearner
from quintain_learners.fsdp.team import Team

from ....core.engine.test_router_replay import routed, with_noisy_routers
from ....core.learning import batches
from ....core.models.architectures import architecture

SETTINGS: dict[str, Any] = {"token_budget": 40, "lr": 1e-2, "skip_idle": False}


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2, silence=300.0)
    yield team
    team.close()


def recorded(module: Any) -> Batch:
    """A batch with the experts of an engine that has other routers."""
    engine = with_noisy_routers(module, 0.5)
    batch = batches.batch(vocab=64)
    samples = []
    for sample in batch.samples:
        (row,) = sample.sequences
        experts = routed(engine, row.ids[:-1])
        samples.append(replace(sample, sequences=(replace(row, experts=experts),)))
    return replace(batch, samples=tuple(samples))


@pytest.mark.keeps("sharded")
@pytest.mark.parametrize("sharding", ["sharded", "replicated"])
def test_an_update_with_the_engines_experts_is_that_of_one_process(
    sharding: Any, team: Team
) -> None:
    module = architecture("qwen3-moe")
    batch = recorded(module)
    one = Learner(copy.deepcopy(module), ALGORITHMS["grpo"], **SETTINGS)
    many = FsdpLearner(
        copy.deepcopy(module), ALGORITHMS["grpo"], team=team, ranks=2, sharding=sharding, **SETTINGS
    )
    expected, actual = one.step(batch), many.step(batch)
    assert actual["experts.replayed"] == 1
    assert expected["experts.agree"] < 1
    assert actual["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    for name, tensor in many.weights().tensors().items():
        torch.testing.assert_close(tensor, one.module.state_dict()[name], rtol=0, atol=1e-4)
    if sharding == "replicated":  # sharded ranks repeat a sample to keep step
        for metric in ("experts.max", "experts.entropy", "experts.agree"):
            assert actual[metric] == pytest.approx(expected[metric])
