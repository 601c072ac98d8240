"""The losses against formulas of their own in float64, values and gradients."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from quintain_gateway.errors import ApiError
from quintain_gateway.tinker.losses import check, loss_of


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def cross_entropy(p: float, d: dict[str, float], c: dict[str, float]) -> tuple[float, float]:
    return -d["weights"] * p, -d["weights"]


def importance_sampling(p: float, d: dict[str, float], c: dict[str, float]) -> tuple[float, float]:
    loss = -math.exp(p - d["logprobs"]) * d["advantages"]
    return loss, loss


def ppo(p: float, d: dict[str, float], c: dict[str, float]) -> tuple[float, float]:
    ratio, a = math.exp(p - d["logprobs"]), d["advantages"]
    held = clip(ratio, c.get("clip_low_threshold", 0.8), c.get("clip_high_threshold", 1.2))
    loss = -min(ratio * a, held * a)
    # where the held ratio is the smaller objective, p changes nothing
    return loss, loss if held == ratio or ratio * a < held * a else 0.0


def cispo(p: float, d: dict[str, float], c: dict[str, float]) -> tuple[float, float]:
    ratio, a = math.exp(p - d["logprobs"]), d["advantages"]
    held = clip(ratio, c.get("clip_low_threshold", 0.8), c.get("clip_high_threshold", 1.2))
    return -held * p * a, -held * a


def dro(p: float, d: dict[str, float], c: dict[str, float]) -> tuple[float, float]:
    beta, gap = c.get("beta", 0.05), p - d["logprobs"]
    return -(p * d["advantages"] - beta / 2 * gap * gap), -(d["advantages"] - beta * gap)


OWN: dict[str, Callable[..., tuple[float, float]]] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
}
CONFIGS: dict[str, list[dict[str, float]]] = {
    "ppo": [{}, {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}],
    "cispo": [{}, {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0}],
    "dro": [{}, {"beta": 0.3}],
}
CASES = [(loss, config) for loss in OWN for config in CONFIGS.get(loss, [{}])]


@pytest.mark.parametrize(("loss", "config"), CASES)
def test_a_loss_is_the_sum_of_its_formula_and_so_is_its_gradient(
    loss: str, config: dict[str, float]
) -> None:
    draw = random.Random(f"{loss} {config}")
    for _ in range(50):
        count = draw.randrange(1, 40)
        logp = torch.tensor([-draw.random() * 5 for _ in range(count)], requires_grad=True)
        if loss == "cross_entropy":
            columns = {"weights": [draw.choice([0.0, 1.0, draw.gauss(0, 1)]) for _ in range(count)]}
        else:
            columns = {
                "logprobs": [p + draw.gauss(0, 0.4) for p in logp.tolist()],
                "advantages": [draw.choice([0.0, draw.gauss(0, 1)]) for _ in range(count)],
            }
        inputs = {name: torch.tensor(values) for name, values in columns.items()}
        value = loss_of(loss, logp, inputs, config)
        value.backward()  # type: ignore[no-untyped-call]
        held = {name: values.tolist() for name, values in inputs.items()}  # as float32 has them
        rows = [{name: held[name][i] for name in held} for i in range(count)]
        own = [OWN[loss](p, row, config) for p, row in zip(logp.tolist(), rows, strict=True)]
        scale = max(1.0, sum(abs(v) for v, _ in own))
        assert float(value.detach()) == pytest.approx(
            math.fsum(v for v, _ in own), abs=1e-6 * scale
        )
        assert logp.grad is not None
        steep = max(1.0, *(abs(g) for _, g in own))
        assert logp.grad.tolist() == pytest.approx([g for _, g in own], abs=1e-6 * steep)


def test_gspo_takes_the_ratio_of_the_masked_tokens_for_all() -> None:
    p = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    inputs = {
        "logprobs": torch.tensor([-1.2, -1.9, -0.6]),
        "advantages": torch.tensor([0.0, 2.0, 2.0]),
        "sequence_ratio_mask": torch.tensor([0.0, 1.0, 1.0]),
    }
    value = loss_of("gspo", p, inputs, {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0})
    value.backward()  # type: ignore[no-untyped-call]
    ratio = math.exp((-0.1 + 0.1) / 2)
    assert float(value.detach()) == pytest.approx(-4 * ratio, abs=1e-6)
    assert p.grad is not None
    assert p.grad.tolist() == pytest.approx([0.0, -2 * ratio, -2 * ratio], abs=1e-6)


def test_thresholds_may_be_given_per_token() -> None:
    inputs = {
        "logprobs": torch.tensor([0.0, 0.0]),
        "advantages": torch.tensor([1.0, 1.0]),
        "clip_high_threshold": torch.tensor([1.1, 3.0]),
    }
    value = loss_of("ppo", torch.tensor([1.0, 1.0]), inputs, {})
    assert float(value) == pytest.approx(-(1.1 + math.e), abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "names", "config", "says"),
    [
        ("nll", ["target_tokens"], {}, "unknown"),
        ("stable_reinforce", ["target_tokens"], {}, "not published"),
        ("ppo", ["target_tokens", "logprobs"], {}, "needs advantages"),
        ("cross_entropy", ["target_tokens", "mask"], {}, "does not read mask"),
        ("dro", ["target_tokens", "logprobs", "advantages"], {"alpha": 1.0}, "no setting alpha"),
        ("dro", ["target_tokens", "logprobs", "advantages"], {"beta": "x"}, "expected a number"),
    ],
)
def test_what_a_loss_does_not_take_is_refused(
    loss: str, names: list[str], config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ApiError, match=says):
        check(loss, dict.fromkeys(names), config)
