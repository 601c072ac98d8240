"""Enumeration on a softmax table: the expected update of each row equals the closed form, and the true gradient where
claimed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.learning import PRESETS, Batch, Sample, Terms
from quintain.learning.advantages import Step
from quintain.learning.loss import weighted_sum

from .. import batches
from .closed_form import Array, Case, coefficients, multisets, replies

REPLIES = replies()
PREFIXES = sorted({reply[:k] for reply in REPLIES for k in range(len(reply))})
ROWS = {
    **PRESETS,
    "reinforce-raw": PRESETS["reinforce"].but(advantage="raw"),
    "grpo+tis": PRESETS["grpo"].but(correction="tis", aggregation="token"),
    "dr_grpo+mu": PRESETS["dr_grpo"].but(anchor="mu"),
}


def table(seed: int, near: Array | None = None, step: float = 1.0) -> Array:
    """Logits [prefixes, 3]."""
    noise = np.random.default_rng(seed).normal(size=(len(PREFIXES), 3))
    return noise if near is None else near + step * noise


def log_softmax(logits: Array) -> Array:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def tokens(logits: Array) -> list[Array]:
    """Per reply the log-probs of its tokens."""
    logp = log_softmax(logits)
    return [np.array([logp[PREFIXES.index(y[:k]), y[k]] for k in range(len(y))]) for y in REPLIES]


REWARDS = np.random.default_rng(7).choice([0.0, 0.1, 0.9, 1.0], size=len(REPLIES)).tolist()


def case(on_policy: bool) -> tuple[Array, Case]:
    prox = table(1)
    theta = prox if on_policy else table(2, prox, 0.4)
    mu = prox if on_policy else table(3, prox, 0.6)
    ref = table(4, prox, 0.5)
    return theta, Case(rewards=REWARDS, theta=tokens(theta), prox=tokens(prox), mu=tokens(mu), ref=tokens(ref))


def by_table(theta: Array, per_reply: dict[int, Array]) -> Array:
    """Sum over replies and tokens of coefficient times d log theta / d logits = one-hot - softmax."""
    prob = np.exp(log_softmax(theta))
    out = np.zeros_like(theta)
    for i, values in per_reply.items():
        for k, value in enumerate(values):
            at = PREFIXES.index(REPLIES[i][:k])
            out[at] -= value * prob[at]
            out[at, REPLIES[i][k]] += value
    return out


def expected_closed_form(name: str, theta: Array, case: Case, size: int) -> Array:
    probs = [float(np.exp(logp.sum())) for logp in case.mu]
    assert sum(probs) == pytest.approx(1)
    totals = {i: np.zeros(len(y)) for i, y in enumerate(REPLIES)}
    for group, weight in multisets(probs, size):
        for i, values in zip(group, coefficients(name, case, group, longest=3), strict=True):
            totals[i] = totals[i] + weight * values
    return by_table(theta, totals)


def expected_of_pieces(name: str, theta: Array, case: Case, size: int) -> Array:
    """The same through advantage, aggregation, objective, correction and the weighted sum."""
    row = ROWS[name]
    logits = torch.tensor(theta, requires_grad=True)
    logp = logits.log_softmax(-1)
    probs = [float(np.exp(x.sum())) for x in case.mu]
    loss = torch.zeros((), dtype=torch.float64)
    for group, weight in multisets(probs, size):
        samples = tuple(
            Sample(sequences=(batches.sequence([0], REPLIES[i]),), verdict=REWARDS[i], group=0) for i in group
        )
        batch = Batch(samples=samples, max_tokens=3)
        values = row.advantage(Step(batch=batch, rewards=tuple(s.total for s in samples)))
        owner = torch.tensor([k for k, i in enumerate(group) for _ in REPLIES[i]])
        weights = torch.tensor(row.aggregation(batch), dtype=torch.float64)
        at = [(PREFIXES.index(REPLIES[i][:k]), REPLIES[i][k]) for i in group for k in range(len(REPLIES[i]))]
        terms = Terms(
            logp=torch.stack([logp[a, b] for a, b in at]),
            **{  # type: ignore[arg-type]
                f"{policy}_logp": torch.tensor(np.concatenate([getattr(case, policy)[i] for i in group]))
                for policy in ("mu", "prox", "ref")
            },
            advantage=torch.tensor(values, dtype=torch.float64)[owner],
            entropy=torch.zeros(len(at)),
            sample=owner,
            group=torch.zeros(size, dtype=torch.long),
            anchor=row.anchor,
        )
        loss = loss + weight * weighted_sum(row, terms, weights[owner]).loss
    return np.asarray(torch.autograd.grad(loss, logits)[0])


def true_gradient(theta: Array) -> Array:
    """Of the expected reward under theta."""
    probs = [float(np.exp(x.sum())) for x in tokens(theta)]
    return by_table(theta, {i: np.full(len(y), probs[i] * REWARDS[i]) for i, y in enumerate(REPLIES)})


@pytest.mark.parametrize("name", ROWS)
def test_off_policy_with_clips_active(name: str) -> None:
    """theta, prox, mu and ref all differ."""
    theta, held = case(on_policy=False)
    ratios = np.concatenate([np.exp(a - b) for a, b in zip(held.theta, held.prox, strict=True)])
    assert (ratios > 1.2).any() and (ratios < 0.8).any()
    want = expected_closed_form(name, theta, held, 2)
    assert np.abs(want).max() > 1e-3
    np.testing.assert_allclose(expected_of_pieces(name, theta, held, 2), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name, factor", [("reinforce-raw", 1.0), ("rloo", 1.0), ("dr_grpo", 0.5), ("reinforce", 0.5)])
def test_expected_update_is_the_true_gradient(name: str, factor: float) -> None:
    """On-policy, over the constant length 3; a mean that holds the sample itself costs the factor (G - 1) / G."""
    theta, held = case(on_policy=True)
    update = -expected_of_pieces(name, theta, held, 2)
    np.testing.assert_allclose(update, factor * true_gradient(theta) / 3, rtol=0, atol=1e-12)


def test_grpo_is_biased() -> None:
    """Dividing by spread and length changes the direction of the expected update: it claims no true gradient."""
    theta, held = case(on_policy=True)
    update = -expected_of_pieces("grpo", theta, held, 2).ravel()
    truth = true_gradient(theta).ravel()
    cosine = update @ truth / np.linalg.norm(update) / np.linalg.norm(truth)
    assert 0.3 < cosine < 0.99
