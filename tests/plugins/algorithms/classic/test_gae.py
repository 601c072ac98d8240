"""Generalised advantage estimates: hand-written goldens, rewards of single tokens, what is skipped,
the warm-up.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quintain.errors import UsageError
from quintain.learning import Batch, Learner, Sample
from quintain.learning.pieces.advantages import Step
from quintain.types.transcript import TrainingSequence
from quintain_algorithms.classic.critic import Critic
from quintain_algorithms.classic.gae import estimates, gae, whitened

from ....core.learning import batches
from ....core.models.tiny import tiny_model
from ....lanes import examples
from .table import REWARD, gradients, value

NUMBERS = st.floats(-2, 2, allow_subnormal=False)


class Oracle:
    """A critic whose values are given; it remembers what it was told to learn."""

    def __init__(self, values: list[float]) -> None:
        self._values = torch.tensor(values, dtype=torch.float64)
        self.returns: list[Tensor] = []

    def values(self, batch: Batch) -> Tensor:
        return self._values

    def fit(self, batch: Batch, old_N: Tensor, returns_N: Tensor) -> dict[str, float]:
        self.returns.append(returns_N)
        return {"critic.loss": 0.5}


def step_of(*samples: Sample, penalty: list[float] | None = None) -> Step:
    batch = Batch(samples=samples)
    held = None if penalty is None else torch.tensor(penalty, dtype=torch.float64)
    sums = [0.0] * len(samples)
    for i, x in zip(batch.sample_of_tokens.tolist(), penalty or [], strict=False):
        sums[i] += x
    rewards = tuple(s.total - x for s, x in zip(samples, sums, strict=True))
    return Step(batch=batch, rewards=rewards, penalty=held)


def answer(tokens: int, outcome: float = 0.0, **fields: Any) -> Sample:
    return Sample(
        sequences=(batches.sequence([1, 2], [7] * tokens),), outcome=outcome, group=0, **fields
    )


@pytest.mark.more
@examples(60)
@given(
    tokens=st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), min_size=1, max_size=3),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_is_the_discounted_sum_of_residuals(
    tokens: list[list[tuple[float, float]]], gamma: float, lam: float
) -> None:
    """A_t = sum_k (gamma lam)^k delta_{t+k}, as the paper writes it, sample by sample."""
    want = []
    for sample in tokens:
        rewards, values = (np.array([pair[i] for pair in sample]) for i in (0, 1))
        delta = rewards + gamma * np.append(values, 0.0)[1:] - values
        want += [
            sum((gamma * lam) ** k * delta[t + k] for k in range(len(delta) - t))
            for t in range(len(delta))
        ]
    flat = [pair for sample in tokens for pair in sample]
    rewards_N, values_N = (
        torch.tensor([pair[i] for pair in flat], dtype=torch.float64) for i in (0, 1)
    )
    got = estimates(rewards_N, values_N, [len(sample) for sample in tokens], gamma=gamma, lam=lam)
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-12)


def test_by_hand() -> None:
    """gamma 0.5, lam 0.5, rewards 0, 0, 1, values 0.4, 0.2, 0.6."""
    rewards = torch.tensor([0.0, 0.0, 1.0])
    values = torch.tensor([0.4, 0.2, 0.6], dtype=torch.float64)
    got = estimates(rewards, values, [3], gamma=0.5, lam=0.5)
    third = 1 - 0.6
    second = (0.5 * 0.6 - 0.2) + 0.25 * third
    first = (0.5 * 0.2 - 0.4) + 0.25 * second
    np.testing.assert_allclose(got.numpy(), [first, second, third], rtol=0, atol=1e-12)


def test_lambda_one_is_the_return_less_the_value() -> None:
    """ "This is a bandit problem and gamma = lambda = 1 works": every token gets R - V."""
    oracle = Oracle([0.3, 0.1, 0.7, 0.2])
    (got, told), done = gae(step_of(answer(3, 1.0), answer(1)), critic=oracle, lam=1.0, state=None)
    np.testing.assert_allclose(got.numpy(), [0.7, 0.9, 0.3, -0.2], rtol=0, atol=1e-12)
    np.testing.assert_allclose(oracle.returns[0].numpy(), [1, 1, 1, 0], rtol=0, atol=1e-12)
    assert told == {"critic.loss": 0.5}
    assert done == 1


@pytest.mark.parametrize("lam, exact", [(1.0, False), (0.95, True), (0.0, True)])
def test_the_expected_update_is_the_true_gradient(lam: float, exact: bool) -> None:
    """Enumerated over all replies: with lam = 1 whatever the critic says, with exact values
    whatever lam is.
    """

    def advantages(y: tuple[int, ...]) -> list[float]:
        values = [value(y[:k]) if exact else math.sin(sum(y[:k]) + k) for k in range(len(y))]
        sample = Sample(sequences=(batches.sequence([1, 2], y),), outcome=float(REWARD[y]), group=0)
        (got, _), _ = gae(step_of(sample), critic=Oracle(values), lam=lam, state=None)
        return got.tolist()

    update, truth = gradients(advantages)
    np.testing.assert_allclose(update, truth, rtol=0, atol=1e-12)
    assert np.abs(truth).max() > 0.01


def test_a_wrong_critic_and_a_short_horizon_are_biased() -> None:
    """The price of lam < 1, so that the test above can fail."""

    def advantages(y: tuple[int, ...]) -> list[float]:
        (got, _), _ = gae(
            step_of(answer(len(y), float(REWARD[y]))),
            critic=Oracle([0.0] * len(y)),
            lam=0.5,
            state=None,
        )
        return got.tolist()

    update, truth = gradients(advantages)
    assert np.abs(update - truth).max() > 0.01


def rewards_of(step: Step, **options: Any) -> list[float]:
    """What the critic is taught where lam is 0 and it expects nothing: the reward of each token."""
    oracle = Oracle([0.0] * step.batch.tokens)
    gae(step, critic=oracle, lam=0.0, state=None, **options)
    return oracle.returns[0].tolist()


def test_rewards_of_tokens_add_up_to_the_total() -> None:
    """A turn's score lies on its last token, the rest of the total on the sample's last."""
    turns = answer(5, 1.5, shaping=0.25, turns=(2, 2, 1), turn_scores=(0.5, 0.75))
    plain, empty = answer(2, 1.0), answer(0, 1.0)
    alone = answer(3, 0.5, turn_scores=(0.5,))  # one turn, whose tokens nobody counted
    want = [0, 0.5, 0, 0.75, 0.5, 0, 1, 0, 0, 0.5]
    np.testing.assert_allclose(
        rewards_of(step_of(turns, plain, empty, alone)), want, rtol=0, atol=1e-12
    )


def test_the_clamp_counts_only_what_became_more_likely() -> None:
    step = step_of(answer(2, 1.0), answer(2), penalty=[0.1, -0.2, -0.3, 0.4])
    np.testing.assert_allclose(rewards_of(step), [-0.1, 1, 0, -0.4], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        rewards_of(step, clamp=False), [-0.1, 1.2, 0.3, -0.4], rtol=0, atol=1e-12
    )


def test_inserted_observations_change_nothing() -> None:
    """Tool results between sampled tokens, and branches, with log-probs and values held fixed."""
    gap = TrainingSequence(
        ids=(1, 2, 7, 90, 91, 7, 92, 7),
        mask=(False, False, True, False, False, True, False, True),
        logps=(0.0,) * 8,
        versions=(0,) * 8,
    )
    fields: dict[str, Any] = {"outcome": 1.0, "group": 0, "turns": (1, 2), "turn_scores": (0.25,)}
    plain = Sample(sequences=(batches.sequence([1, 2], [7, 7, 7]),), **fields)
    branches = tuple(batches.sequence([1, 2], [7] * n) for n in (1, 2))
    values, penalty = [0.5, 0.1, 0.2, 0.9], [0.1, -0.1, 0.2, 0.3]
    held = []
    for sample in (plain, replace(plain, sequences=(gap,)), replace(plain, sequences=branches)):
        step = step_of(sample, answer(1), penalty=penalty)
        (got, _), _ = gae(step, critic=Oracle(values), gamma=0.9, lam=0.7, state=None)
        held.append(got)
    assert torch.equal(held[0], held[1])
    assert torch.equal(held[0], held[2])


def test_whitening() -> None:
    """Over all tokens, ddof 0; what is constant is exactly 0, as 0.7 is not in floating point."""
    values = np.array([0.3, -1.0, 2.0, 0.0])
    want = (values - values.mean()) / (values.std() + 1e-8)
    np.testing.assert_allclose(whitened(torch.tensor(values)).numpy(), want, rtol=0, atol=1e-12)
    assert not whitened(torch.full((12,), 0.7, dtype=torch.float64)).any()
    oracle = Oracle([0.0, 0.0, 0.0])
    (got, _), _ = gae(
        step_of(answer(2, 1.0), answer(1)), critic=oracle, whiten=True, lam=1.0, state=None
    )
    assert got.mean().abs() < 1e-12
    assert abs(float(got.square().mean()) - 1) < 1e-6
    # the critic learns returns, not what was made of them
    assert oracle.returns[0].tolist() == [1, 1, 0]


def test_the_critic_alone_learns_at_first() -> None:
    oracle, state = Oracle([0.0, 0.0]), None
    for number in range(4):
        (got, _), state = gae(step_of(answer(2, 1.0)), critic=oracle, warmup=2, state=state)
        assert bool(got.any()) == (number >= 2)
        assert len(oracle.returns) == state == number + 1


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match="expected numbers from 0 to 1"):
        gae(step_of(answer(1)), critic=Oracle([0.0]), lam=1.5, state=None)


def test_a_step_of_the_learner() -> None:
    """The whole row on a real model: penalty, values and metrics arrive; the warm-up moves the
    critic alone.
    """
    from quintain_algorithms.classic import PPO

    algorithm = PPO.replace(advantage={"warmup": 1})
    learner = Learner(
        tiny_model(hidden=16, layers=1),
        algorithm,
        lr=1e-3,
        reference=tiny_model(hidden=16, layers=1, seed=1),
    )
    critic = Critic(learner=learner, lr=1e-2)
    learner.serve({"critic": critic})
    before = [p.detach().clone() for p in learner.module.parameters()]
    batch = batches.batch(groups=3, group_size=2)

    first = learner.step(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.module.parameters(), strict=True))
    assert first["critic.value"] == 0
    assert first["critic.loss"] > 0
    assert first["idle"] == 1

    second = learner.step(batch)
    assert not all(
        torch.equal(a, b) for a, b in zip(before, learner.module.parameters(), strict=True)
    )
    assert second["updates"] == 4
    assert second["critic.value"] != 0
    assert second["critic.explained_variance"] > first["critic.explained_variance"]
