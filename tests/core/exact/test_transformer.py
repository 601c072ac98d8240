"""The same enumeration through the real path: batch, layout, scorer, objective, on a two-layer transformer in float64.

The other side is a Jacobian of plain forward passes, one reply at a time, with coefficients from NumPy; it shares no
shift, mask, packing or temperature with the path under test.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintain.learning import PRESETS, Batch, Learner, Sample

from .. import batches
from ..models import tiny_model
from .closed_form import Array, Case, coefficients, multisets, replies

REPLIES = replies()
PROMPT = [1, 0]
TEMPERATURE = 0.8
REWARDS = np.random.default_rng(7).choice([0.0, 0.1, 0.9, 1.0], size=len(REPLIES)).tolist()
OPTIONS: dict[str, Any] = {"max_grad_norm": 0.0}


def model(seed: int) -> Any:
    """Two layers, vocabulary 3; transformers rounds its norms to float32, which is put right here."""
    built = tiny_model("qwen3", vocab=3, hidden=8, seed=seed, spread=0.5, dtype=torch.float64, pad_token_id=None)
    for part in built.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = MethodType(_norm, part)
    return built


def _norm(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def token_logps(module: Any, reply: tuple[int, ...]) -> Tensor:
    logits = module(input_ids=torch.tensor([[*PROMPT, *reply]])).logits[0] / TEMPERATURE
    return torch.stack([logits[len(PROMPT) + k - 1].log_softmax(-1)[y] for k, y in enumerate(reply)])


def values(module: Any) -> list[Array]:
    with torch.no_grad():
        return [token_logps(module, y).numpy() for y in REPLIES]


def jacobian(module: Any) -> list[Array]:
    """Per reply [tokens, parameters]."""
    out = []
    for reply in REPLIES:
        rows = []
        for logp in token_logps(module, reply):
            grads = torch.autograd.grad(logp, list(module.parameters()), retain_graph=True)
            rows.append(torch.cat([g.flatten() for g in grads]).numpy())
        out.append(np.array(rows))
    return out


def closed_form(held: Case, jac: list[Array], name: str, group: tuple[int, ...]) -> Array:
    parts = zip(group, coefficients(name, held, group, longest=3), strict=True)
    return np.asarray(sum(c @ jac[i] for i, c in parts))


def batch_of(group: tuple[int, ...], mu: list[Array]) -> Batch:
    rows = [batches.sequence(PROMPT, REPLIES[i], logps=mu[i].tolist()) for i in group]
    samples = tuple(Sample(sequences=(row,), verdict=REWARDS[i], group=0) for i, row in zip(group, rows, strict=True))
    return Batch(samples=samples, max_tokens=3, temperature=TEMPERATURE)


def gradient(learner: Learner, batch: Batch) -> Array:
    """Of the loss, in the last update."""
    learner.step(batch)
    return torch.cat([p.grad.flatten() for p in learner.module.parameters()]).numpy().copy()


@pytest.mark.parametrize("name", PRESETS)
def test_first_update_of_a_group(name: str) -> None:
    """theta = prox, with mu and ref elsewhere."""
    module, reference = model(0), model(2)
    theta, mu = values(module), values(model(1))
    held = Case(rewards=REWARDS, theta=theta, prox=theta, mu=mu, ref=values(reference))
    jac = jacobian(module)
    learner = Learner(module, PRESETS[name], lr=0.0, reference=reference, **OPTIONS)
    for group in ((0, 7), (14, 2, 2), (5, 9, 11, 0), (3, 3)):
        want = closed_form(held, jac, name, group)
        np.testing.assert_allclose(gradient(learner, batch_of(group, mu)), want, rtol=0, atol=1e-9)


def test_expected_update_is_the_true_gradient() -> None:
    """Of rloo over all groups of two, divided by the constant length 3."""
    module = model(0)
    theta = values(module)
    probs = [float(np.exp(x.sum())) for x in theta]
    learner = Learner(module, PRESETS["rloo"], lr=0.0, **OPTIONS)
    update = sum(
        weight * gradient(learner, batch_of(group, theta))
        for group, weight in multisets(probs, 2)
        if abs(REWARDS[group[0]] - REWARDS[group[1]]) > 1e-6  # the others give 0, which is tested elsewhere
    )
    truth = sum(p * r * j.sum(0) for p, r, j in zip(probs, REWARDS, jacobian(module), strict=True))
    np.testing.assert_allclose(-np.asarray(update), truth / 3, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "grpo+tis"])
def test_second_epoch_is_off_policy_with_clips(name: str) -> None:
    """The first epoch moves theta away from prox; the second epoch's gradient equals the closed form, clips active."""
    row = PRESETS[name.partition("+")[0]]
    if name == "grpo+tis":
        row = row.but(correction="tis", aggregation="token")
    start, mu, reference = model(0), values(model(1)), model(2)
    prox = values(start)
    active = 0
    for group in ((0, 5, 9), (3, 3, 12), (14, 1, 6)):
        once, twice = (
            Learner(copy.deepcopy(start), row.but(epochs=n), lr=0.03, reference=reference, **OPTIONS) for n in (1, 2)
        )
        once.step(batch_of(group, mu))
        twice.step(batch_of(group, mu))
        moved = values(once.module)
        held = Case(rewards=REWARDS, theta=moved, prox=prox, mu=mu, ref=values(reference))
        jac = jacobian(once.module)
        want = closed_form(held, jac, name, group)
        got = torch.cat([p.grad.flatten() for p in twice.module.parameters()]).numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)
        active += sum(int((np.abs(np.exp(moved[i] - prox[i]) - 1) > 0.2).sum()) for i in group)
    assert active > 3
