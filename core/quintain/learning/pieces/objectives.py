"""Objectives: the loss of every term, never reduced; weights come from the aggregation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...interfaces.algorithm import KL
from ...interfaces.pieces import objective
from ..loss_inputs import LossInputs


@objective(reads=(), idle=True)
def policy_gradient(t: LossInputs) -> Tensor:
    """-A log theta: the likelihood-ratio gradient (Williams 1992), without a ratio."""
    return -t.advantage * t.logp


WithMetrics = tuple[Tensor, dict[str, Tensor]]


@objective(idle=True)
def importance(t: LossInputs) -> Tensor:
    """-r A, r = theta / ratio_to per token: the surrogate before any trust region. At theta =
    ratio_to its gradient is the policy gradient; elsewhere its variance grows with the ratio.
    """
    return -t.ratio() * t.advantage


def check_dual(*, low: float, high: float | None, dual: float | None) -> None:
    top = 1 + (low if high is None else high)
    if dual is not None and dual <= top:
        raise UsageError(f"dual is {dual}; expected more than the upper bound of the clip, {top}")


@objective(idle=True, clips=("low", "high"), check=check_dual)
def ppo_clip(
    t: LossInputs, *, low: float = 0.2, high: float | None = None, dual: float | None = None
) -> WithMetrics:
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = theta / ratio_to per token (Schulman et al.
    2017, 1707.06347, equation 7).

    Args:
        low: below 1.
        high: above 1; ``None`` is *low*. DAPO's clip-higher sets it apart.
        dual: for A < 0 the loss is at most -dual A, so that a ratio far above 1 stops pushing down
            too (dual clip; Ye et al. 2020, 1912.09729, equation 5, with 3). ``None``: off. verl has
            it always on.
    """
    return clip_terms(t.log_ratio(), t.advantage, low, high, dual)


def clip_terms(
    log_ratio: Tensor, advantage: Tensor, low: float, high: float | None, dual: float | None
) -> WithMetrics:
    """Return -r A; where the clip is active, the constant -bound A.

    A clipped ratio may overflow (products over long samples do), and 0 times infinity is NaN: it is
    masked before the exponential.
    """
    top = 1 + (low if high is None else high)
    ratio = log_ratio.detach().exp()
    clipped = {
        "clip.low": (ratio < 1 - low) & (advantage < 0),
        "clip.high": (ratio > top) & (advantage > 0),
    }
    bounds = {"clip.low": 1 - low, "clip.high": top}
    if dual is not None:
        clipped["clip_dual"] = (ratio > dual) & (advantage < 0)
        bounds["clip_dual"] = dual
    constant = advantage == 0
    for mask in clipped.values():
        constant = constant | mask
    terms = -log_ratio.masked_fill(constant, 0.0).exp() * advantage
    for name, mask in clipped.items():
        terms = torch.where(mask, -bounds[name] * advantage, terms)
    return terms, clipped


def kl_estimate(log_ratio: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Return k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d for d = log theta - log ref (Schulman 2020,
    "Approximating KL divergence").
    """
    if estimator == "k1":
        return log_ratio
    return log_ratio.square() / 2 if estimator == "k2" else torch.expm1(-log_ratio) + log_ratio


def kl_terms(t: LossInputs, kl: KL) -> Tensor:
    """Return the KL term of each token for the loss, [N]; see `KL` for what its gradient is."""
    assert t.ref_logp is not None
    value = kl_estimate(t.logp - t.ref_logp, kl.estimator)
    return value * (t.logp - t.logp.detach()).exp() if kl.score_factor else value
