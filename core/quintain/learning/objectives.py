"""Objectives: the loss of every term, never reduced; weights come from the aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from ..algorithm import KL, objective
from .terms import Terms

if TYPE_CHECKING:
    from torch import Tensor


@objective(reads=(), idle=True)
def policy_gradient(t: Terms) -> Tensor:
    """-A log theta: the likelihood-ratio gradient (Williams 1992), without a ratio."""
    return -t.advantage * t.logp


@objective(idle=True)
def ppo_clip(t: Terms, *, low: float = 0.2, high: float | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = theta / anchor per token (Schulman et al. 2017, 1707.06347, equation
    7).

    Args:
        low: below 1.
        high: above 1; ``None`` is *low*. DAPO's clip-higher sets it apart.
    """
    ratio = t.ratio()
    top = 1 + (low if high is None else high)
    clipped = ratio.clamp(1 - low, top)
    terms = torch.maximum(-ratio * t.advantage, -clipped * t.advantage)
    below, above = (ratio < 1 - low) & (t.advantage < 0), (ratio > top) & (t.advantage > 0)
    return terms, {"clip_low": below, "clip_high": above}


def kl_estimate(log_ratio: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d for d = log theta - log ref (Schulman 2020, "Approximating KL
    divergence").
    """
    if estimator == "k1":
        return log_ratio
    return log_ratio.square() / 2 if estimator == "k2" else torch.expm1(-log_ratio) + log_ratio


def kl_terms(t: Terms, kl: KL) -> Tensor:
    """The KL term of each token for the loss, [N]; see `KL` for what its gradient is."""
    assert t.ref_logp is not None
    value = kl_estimate(t.logp - t.ref_logp, kl.estimator)
    return value * (t.logp - t.logp.detach()).exp() if kl.score_factor else value
