"""What a step tells of itself: each number against its closed form, and none depends on the
micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintain.interfaces.algorithm import KL
from quintain.interfaces.pieces import advantage, objective, optimizer_step
from quintain.learning import ALGORITHMS, Batch, Learner, LossInputs
from quintain.learning.meter import Meter, advantage_metrics, sampler_metrics, staleness
from quintain.learning.optimizer_step import OptimizerStep
from quintain.learning.pieces.advantages import Step

from ..models.tiny import tiny_model
from . import batches
from .algorithms import needs_algorithms

GRPO = ALGORITHMS["grpo"].replace(kl=KL(where="loss", estimator="k3", coefficient=0.04))
LIMITS: dict[str, dict[str, Any]] = {"tis": {}, "sequence_mask": {"limit": 3.0}}


def terms(tokens: int = 7, *, seed: int = 0, ref: bool = True) -> LossInputs:
    """Made-up log-probs of three samples of which the last has most tokens."""
    draw = np.random.default_rng(seed)
    logps = {
        name: torch.tensor(-draw.exponential(1.0, tokens))
        for name in ("logp", "mu_logp", "prox_logp")
    }
    return LossInputs(
        **logps,
        ref_logp=torch.tensor(-draw.exponential(1.0, tokens)) if ref else None,
        advantage=torch.tensor(draw.normal(size=tokens)),
        entropy=torch.tensor(draw.exponential(1.0, tokens)),
        sample=torch.tensor([0, 1, 1] + [2] * (tokens - 3)),
        group=torch.tensor([0, 0, 1]),
    )


def met(
    *observed: tuple[LossInputs, dict[str, Tensor], Tensor | None], updates: int = 0
) -> dict[str, float]:
    meter = Meter()
    for _ in range(updates):
        meter.update(loss=0.0, grad_norm=0.0)
    for t, told, weight in observed:
        meter.observe(t, told, weight)
    return meter.summary()


def test_means_and_extremes_are_over_all_tokens() -> None:
    """Two micro-batches of different size weigh as their tokens do."""
    parts = [terms(4, seed=1), terms(11, seed=2)]
    found = met(*((t, {}, None) for t in parts), updates=1)
    logp, prox, ref, entropy = (
        np.concatenate([getattr(t, name).numpy() for t in parts])
        for name in ("logp", "prox_logp", "ref_logp", "entropy")
    )
    ratio = np.exp(logp - prox)

    assert found["entropy"] == pytest.approx(entropy.mean(), rel=1e-12)
    assert found["ratio.mean"] == pytest.approx(ratio.mean(), rel=1e-12)
    assert (found["ratio.min"], found["ratio.max"]) == pytest.approx(
        (ratio.min(), ratio.max()), rel=1e-12
    )
    assert found["kl.ref.k1"] == pytest.approx((logp - ref).mean(), rel=1e-12)
    assert found["kl.ref.k3"] == pytest.approx(
        (np.exp(ref - logp) - 1 - (ref - logp)).mean(), rel=1e-12
    )
    assert found["kl.prox.k1"] == pytest.approx((prox - logp).mean(), rel=1e-12)
    assert found["kl.prox.k3"] == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-12)


def test_ratios_are_raw_and_to_the_denominator() -> None:
    """Before any clip, however large; to mu where that is the ratio_to."""
    t = replace(
        terms(),
        logp=torch.zeros(7, dtype=torch.float64),
        mu_logp=torch.full((7,), -200.0),
        ratio_to="mu",
    )

    assert met((t, {}, None))["ratio.max"] == pytest.approx(math.exp(200))


def test_numbers_that_rest_on_nothing_are_left_out() -> None:
    found = met((terms(ref=False), {}, None))

    assert not {
        name for name in found if name.startswith(("kl.", "masked.", "correction.", "clip."))
    }
    assert {"loss", "grad_norm"}.isdisjoint(found)
    assert found["updates"] == 0
    assert found["updates.skipped"] == 0


def test_what_an_objective_tells_has_its_place() -> None:
    told = {
        "clip.low": torch.tensor([True, False, False]),
        "clip.high": torch.tensor([True, True, False]),
    }
    found = met((terms(), {**told, "margin": torch.tensor([2.0, 4.0])}, None))

    assert found["clip.low"] == pytest.approx(1 / 3)
    assert found["clip.high"] == pytest.approx(2 / 3)
    assert found["objective.margin"] == 3


@pytest.mark.parametrize(
    "weight, tokens, samples, mean",
    [
        ([1.0, 0, 0, 0, 2, 0, 4], 4 / 7, 1 / 3, 1.0),
        ([0.0, 1, 0, 1, 1, 1, 1], 2 / 7, 1 / 3, 5 / 7),
        ([3.0, 0, 0], 6 / 7, 2 / 3, 1.0),
        ([0.0, 1, 1], 1 / 7, 1 / 3, 2 / 3),
    ],
)
def test_masked_shares_of_tokens_and_of_samples(
    weight: list[float], tokens: float, samples: float, mean: float
) -> None:
    """Of weights per token a sample is out where all its tokens are; of weights per sample its
    tokens go with it.
    """
    found = met((terms(), {}, torch.tensor(weight)))

    assert found["masked.tokens"] == pytest.approx(tokens)
    assert found["masked.sequences"] == pytest.approx(samples)
    assert found["correction.mean"] == pytest.approx(mean)


def test_updates_made_and_left_out() -> None:
    meter = Meter()
    meter.update(loss=1.0, grad_norm=3.0, cosine=0.5)
    meter.skip()
    meter.skip(loss=2.0)
    meter.update(loss=3.0, grad_norm=2.0)
    found = meter.summary(lr=0.1)

    assert found == {
        "loss": 2.0,
        "grad_norm": 3.0,
        "updates": 2.0,
        "updates.skipped": 2.0,
        "optimizer_step.cosine": 0.5,
        "lr": 0.1,
    }


def test_sampler_against_learner() -> None:
    draw = np.random.default_rng(3)
    mu, sample = -draw.exponential(1.0, 9), np.array([0, 0, 1, 1, 1, 3, 3, 4, 4])
    prox = mu + draw.normal(0, 0.3, 9)
    known = np.append(prox, np.nan)  # one token of sample 5 was not scored
    found = sampler_metrics(
        torch.tensor(known), torch.tensor(np.append(mu, -9.0)), torch.tensor(np.append(sample, 5))
    )
    w = np.exp(prox - mu)
    product = np.array([w[sample == i].prod() for i in (0, 1, 3, 4)])

    assert found["mismatch.mean"] == pytest.approx(np.abs(prox - mu).mean(), rel=1e-12)
    assert found["mismatch.max"] == pytest.approx(np.abs(prox - mu).max(), rel=1e-12)
    assert found["mismatch.kl"] == pytest.approx((w - 1 - np.log(w)).mean(), rel=1e-9)
    assert found["ess.tokens"] == pytest.approx(w.sum() ** 2 / (9 * (w**2).sum()), rel=1e-12)
    assert found["ess.sequences"] == pytest.approx(
        product.sum() ** 2 / (4 * (product**2).sum()), rel=1e-12
    )


def test_effective_sample_size_at_its_ends() -> None:
    """Equal weights are worth all samples; one that outweighs the rest beyond the range of floats,
    one sample.
    """
    sample = torch.arange(4).repeat_interleave(300)
    equal = sampler_metrics(torch.full((1200,), -1.0), torch.full((1200,), -1.0), sample)
    heavy = torch.full((1200,), -1.0, dtype=torch.float64)
    heavy[:300] += 5
    one = sampler_metrics(heavy, torch.full((1200,), -1.0, dtype=torch.float64), sample)

    assert equal["ess.tokens"] == pytest.approx(1.0)
    assert equal["ess.sequences"] == pytest.approx(1.0)
    assert equal["mismatch.kl"] == 0
    assert one["ess.sequences"] == pytest.approx(0.25)
    assert (
        sampler_metrics(
            torch.full((2,), torch.nan), torch.zeros(2), torch.zeros(2, dtype=torch.long)
        )
        == {}
    )


def test_advantages_over_tokens_and_idle_samples() -> None:
    value, sample = torch.tensor([0.0, 0.0, 1.0, 0.0, -2.0]), torch.tensor([0, 0, 1, 1, 3])
    found = advantage_metrics(value, sample, 4)  # sample 2 has no token

    assert found == pytest.approx(
        {
            "advantage.mean": -0.2,
            "advantage.spread": float(np.std(value.numpy())),
            "advantage.min": -2.0,
            "advantage.max": 1.0,
            "advantage.positive": 0.2,
            "idle": 0.5,
        },
        rel=1e-6,
    )


def test_staleness_counts_synced_versions() -> None:
    """Of the tokens that train; those of the prompt have no version."""
    plain = batches.batch(groups=1, group_size=1).samples[0]
    (row,) = plain.sequences
    versions = tuple((3 if i % 2 else 5) if m else -1 for i, m in enumerate(row.mask))
    batch = Batch(samples=(replace(plain, sequences=(replace(row, versions=versions),)),))
    ages = [5 - v for v in versions if v >= 0]

    for ignored in (False, True):
        assert staleness(batch.versions, 5, ignored=ignored) == {
            "staleness.mean": pytest.approx(np.mean(ages)),
            "staleness.max": max(ages),
            "staleness.ignored": pytest.approx(
                np.mean([age > 0 for age in ages]) if ignored else 0
            ),
        }
    assert max(ages) == 2


@pytest.mark.keeps("tis")
@pytest.mark.parametrize(
    "correction", ["tis", pytest.param("sequence_mask", marks=needs_algorithms)]
)
def test_no_metric_depends_on_the_micro_batches(correction: Any) -> None:
    """All that a step says, with two epochs of two minibatches, a reference and a correction that
    masks samples.
    """
    algorithm = GRPO.replace(
        epochs=2, minibatches=2, correction={"use": correction, **LIMITS[correction]}
    )
    found = []
    for budget in (1, 30, 10**6):
        learner = Learner(
            tiny_model("qwen3", dtype=torch.float64),
            algorithm,
            lr=3e-3,
            token_budget=budget,
            reference=tiny_model("qwen3", seed=4, dtype=torch.float64),
        )
        told = learner.step(batches.batch(groups=4))
        found.append({name: value for name, value in told.items() if name != "seconds"})

    assert {"kl.prox.k3", "kl.ref.k1", "clip.low", "masked.tokens", "ess.sequences", "idle"} <= set(
        found[0]
    )
    assert found[0]["clip.high"] > 0
    assert found[1] == pytest.approx(found[0], rel=1e-6, abs=1e-9)
    assert found[2] == pytest.approx(found[0], rel=1e-6, abs=1e-9)
    if correction == "sequence_mask":
        assert 0 < found[0]["masked.sequences"] < 1


def test_a_learner_measures_its_own_policies() -> None:
    """KL to ref, mismatch and staleness of a real step against log-probs computed apart."""
    module, other = (tiny_model("qwen3", seed=seed, dtype=torch.float64) for seed in (0, 4))
    batch = batches.batch()
    learner = Learner(
        module, GRPO.replace(advantage="raw"), lr=1e-3, reference=other, skip_idle=False
    )
    theta, ref = learner.logprobs(batch), learner.logprobs(batch, policy="ref")
    mu = torch.tensor(
        [
            x
            for s in batch.samples
            for q in s.sequences
            for x, m in zip(q.logps, q.mask, strict=True)
            if m
        ]
    )
    learner.version = 7
    found = learner.step(batch)

    assert found["kl.ref.k1"] == pytest.approx(float((theta - ref).mean()), rel=1e-5)
    assert found["mismatch.mean"] == pytest.approx(float((theta - mu).abs().mean()), rel=1e-5)
    assert found["staleness.mean"] == 7
    assert found["staleness.max"] == 7
    assert found["staleness.ignored"] == 1
    assert not {name for name in found if name.startswith("kl.prox")}
    assert found["advantage.positive"] == pytest.approx(
        sum(s.tokens for s in batch.samples if s.total > 0) / batch.tokens
    )
    assert found["idle"] == pytest.approx(
        sum(s.total == 0 for s in batch.samples) / len(batch.samples)
    )


def test_nothing_to_learn_is_an_update_left_out() -> None:
    found = Learner(tiny_model(), ALGORITHMS["rloo"].replace(epochs=2)).step(
        batches.batch(rewards=[1.0])
    )

    assert found["updates"] == 0
    assert found["updates.skipped"] == 2
    assert found["idle"] == 1
    assert {"loss", "grad_norm", "entropy", "mismatch.mean"}.isdisjoint(found)


@advantage(name="meter_advantage")
def telling_advantage(step: Step) -> tuple[list[float], dict[str, float]]:
    return list(step.rewards), {"depth": 0.25, "critic.explained_variance": 0.75}


@objective(name="meter_objective", reads=())
def telling_objective(t: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -t.advantage * t.logp, {"depth": torch.full_like(t.logp, 3.0)}


@optimizer_step(name="meter_update")
def telling_update(step: OptimizerStep) -> dict[str, float]:
    loss = step.backward()
    return {"loss": loss, "grad_norm": 0.5, "tries": 4.0}


def test_what_pieces_tell_goes_under_their_kind() -> None:
    algorithm = ALGORITHMS["rloo"].replace(
        advantage=telling_advantage, objective=telling_objective, optimizer_step=telling_update
    )
    found = Learner(tiny_model(), algorithm).step(batches.batch())

    assert found["advantage.depth"] == 0.25
    assert found["objective.depth"] == 3
    assert found["optimizer_step.tries"] == 4
    assert found["critic.explained_variance"] == 0.75
    assert found["grad_norm"] == 0.5
    # the algorithm corrects nothing
    assert not {name for name in found if name.startswith(("masked.", "correction."))}
