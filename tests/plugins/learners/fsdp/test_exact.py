"""Ranks against one process: the same gradients, metrics and weights, in float64."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintain.interfaces.algorithm import KL, Algorithm
from quintain.learning import Advantages, Batch, Learner
from quintain.models.lora import with_adapters
from quintain.registry.discovery import discover
from quintain.registry.lookup import Registry
from quintain_learners.fsdp import FsdpLearner
from quintain_learners.fsdp.team import Team

from ....core.learning import batches
from ....core.models.tiny import tiny_model

STEPS = 3
SHARDINGS = ("replicated", "sharded", "hybrid")
CASES = [(ranks, sharding) for ranks in (1, 2, 3, 4) for sharding in SHARDINGS]
ALGORITHMS: dict[str, Algorithm] = {
    component.name: Registry([component]).resolve(component)
    for component in discover()
    if component.kind == "algorithm"
}
VARIANTS = dict(ALGORITHMS)
if "gspo" in ALGORITHMS:
    VARIANTS |= {
        "dppo_top": ALGORITHMS["dr_grpo"].replace(
            name="dppo_top", objective={"use": "dppo_top", "delta": 0.01, "top": 3}
        ),
        "dvp_coarse": ALGORITHMS["dvp"].replace(
            name="dvp_coarse", prune=0.05, kl=KL(where="loss", estimator="k2", coefficient=0.1)
        ),
        "grpo_tis": ALGORITHMS["grpo"].replace(
            name="grpo_tis", correction="tis", aggregation="prompt", mask_truncated=True
        ),
    }
TIED = {"full": True, "lora": False}
"""Whether the output layer is that of the embeddings, by what trains."""


@cache
def model(trains: str) -> Any:
    """Copy it to train. GPT-2, since the norms of other models round to float32 on their way."""
    module = tiny_model(
        "gpt2",
        vocab=24,
        hidden=16,
        spread=0.4,
        dtype=torch.float64,
        pad_token_id=None,
        tie_word_embeddings=TIED[trains],
    )
    if trains == "full":
        return module
    torch.manual_seed(1)
    adapted = with_adapters(module, {"r": 2, "fan_in_fan_out": True}).double()
    for name, parameter in adapted.named_parameters():  # both maps of an adapter have a gradient
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted


@cache
def batch(trains: str = "full") -> Batch:
    """Three groups of three, ragged, one reply cut short; log-probs near the policy's."""
    made = batches.batch(groups=3, group_size=3, vocab=24, longest=7, rewards=[0.0, 1.0, 0.3])
    exact = Learner(copy.deepcopy(model(trains))).logprobs(made).tolist()
    samples = []
    for i, sample in enumerate(made.samples):
        (row,) = sample.sequences
        samples.append(replace(sample, sequences=(batches.near(row, exact),), truncated=i == 5))
    return replace(made, samples=tuple(samples))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a learner did in `STEPS` steps on the same batch."""

    metrics: list[Mapping[str, float]]
    gradients: list[Tensor]
    weights: dict[str, Tensor]


def settings_of(algorithm: Algorithm, cut: str) -> tuple[Algorithm, dict[str, Any]]:
    """One micro-batch; or several, two minibatches and two epochs."""
    if cut == "one":
        return algorithm, {"lr": 1e-3, "token_budget": 10**6}
    several = {} if algorithm.optimizer_step else {"epochs": 2, "minibatches": 2}
    return algorithm.replace(**several), {"lr": 1e-3, "token_budget": 25}


def teacher_columns() -> dict[str, Tensor]:
    """Return what a teacher says of the whole vocabulary at each token, made up."""
    vocab, tokens = 24, batch().tokens
    numbers = torch.randn(tokens, vocab, generator=torch.Generator().manual_seed(0)).double()
    return {
        "asked_ids": torch.arange(vocab).expand(tokens, vocab),
        "teacher_logp": numbers.log_softmax(1),
        "teacher_complete": torch.ones(tokens, dtype=torch.bool),
    }


def trained(learner: Learner, trains: str) -> Trained:
    """Train on `batch`; where the advantage needs services, which are the driver's, on made-up
    ones.
    """
    algorithm = learner.algorithm
    assert algorithm is not None
    advantages = None
    if algorithm.advantage.needs or algorithm.advantage.asynchronous:
        draw = random.Random(0)
        values = torch.tensor([draw.gauss(0, 1) for _ in range(batch(trains).tokens)]).double()
        columns = teacher_columns() if algorithm.objective.name == "divergence" else {}
        advantages = Advantages(values=values, columns=columns)
        if not isinstance(learner, FsdpLearner):
            learner.serve(dict.fromkeys(algorithm.advantage.needs.values()))
    # Advantages of `otb` are 0 up to rounding at some tokens, so that their sign is that of the cut.
    left_out = {"seconds"} | ({"advantage.positive"} if algorithm.name == "otb" else set())
    metrics, gradients = [], []
    for step in range(STEPS):
        found = learner.step(learner.prepare(batch(trains)), advantages=advantages)
        metrics.append({name: value for name, value in found.items() if name not in left_out})
        if not step:
            gradients = gradients_of(learner)
    weights = {name: p.detach().clone() for name, p in learner.module.named_parameters()}
    return Trained(metrics=metrics, gradients=gradients, weights=weights)


def gradients_of(learner: Learner) -> list[Tensor]:
    """Return the gradients of the last update, as they were clipped."""
    if not isinstance(learner, FsdpLearner):
        return [p.grad.clone() for p in learner.parameters if p.grad is not None]
    wholes = [torch.empty_like(p).detach().share_memory_() for p in learner.parameters]
    learner.team.call("gradients", wholes)
    return wholes


def assert_same(actual: Trained, expected: Trained, trains: str) -> None:
    # Conjugate gradients, of `trpo`, multiply rounding.
    natural = "natural.gain" in expected.metrics[0]
    for step, (got, want) in enumerate(zip(actual.metrics, expected.metrics, strict=True)):
        close = 1e-8 if natural else 1e-10 if step else 1e-12
        assert got == pytest.approx(want, rel=close, abs=max(1e-12, close / 100))
    largest = max(float(g.abs().max()) for g in expected.gradients)
    for got, want in zip(actual.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12 * max(1.0, largest))
    initial = dict(model(trains).named_parameters())
    assert any(not torch.equal(want, initial[name]) for name, want in expected.weights.items())
    for name, want in expected.weights.items():
        torch.testing.assert_close(
            actual.weights[name], want, rtol=0, atol=1e-9 if natural else 1e-10
        )


def check(team: Team, algorithm: Algorithm, trains: str, cut: str, cases: Any) -> None:
    algorithm, settings = settings_of(algorithm, cut)
    expected = trained(
        Learner(copy.deepcopy(model(trains)), algorithm, layout="bucketed", **settings),
        trains,
    )
    for ranks, sharding in cases:
        if algorithm.optimizer_step is not None and sharding != "replicated":
            continue  # refused, see test_refusals
        learner = FsdpLearner(
            copy.deepcopy(model(trains)),
            algorithm,
            ranks=ranks,
            sharding=sharding,
            team=team,
            layout="bucketed",
            **settings,
        )
        assert_same(trained(learner, trains), expected, trains)


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["one", "several"])
@pytest.mark.parametrize("trains", ["full", "lora"])
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_any_number_of_ranks_makes_the_update_of_one_process(
    name: str, trains: str, cut: str, team: Team
) -> None:
    """Gradients and metrics to 1e-12 and weights after three steps to 1e-10: all algorithms, 1 to 4
    ranks, replicated, sharded and in groups, also where ranks have no sample.
    """
    check(team, VARIANTS[name], trains, cut, CASES)
