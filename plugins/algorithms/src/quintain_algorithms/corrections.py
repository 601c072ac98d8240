"""Corrections of the algorithms in this package: whole samples, bands, masks by divergence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from quintain import correction
from quintain.errors import UsageError
from quintain.learning import LossInputs


@correction(level="sequence")
def tis_sequence(t: LossInputs, *, cap: float = 5.0) -> Tensor:
    """min(prox(y) / mu(y), cap) per sample, the product over its tokens: truncated importance
    sampling of whole samples (cap 5 as in SkyRL).
    """
    return t.mismatch("product").clamp(max=cap)


@correction
def icepop(t: LossInputs, *, low: float = 0.5, high: float = 5.0) -> Tensor:
    """prox / mu per token where that is within [low, high], else 0 (IcePop; Ant Group 2025; bounds
    as in verl).
    """
    weight = t.mismatch()
    return _within(weight, low, high)


@correction(level="sequence")
def mis(t: LossInputs, *, low: float = 0.0, high: float = 3.0) -> Tensor:
    """prox(y) / mu(y) per sample, the product over its tokens, where that is within [low, high],
    else 0: masked importance sampling, TRL's default ("sequence_mask", 3). Long samples leave
    first, as their products spread most.
    """
    weight = t.mismatch("product")
    return _within(weight, low, high)


KLEstimate = Literal["k1", "k2", "k3"]
Reduction = Literal["sum", "mean", "max"]


@correction(level="sequence", masks=True)
def sequence_mask(
    t: LossInputs, *, estimate: KLEstimate = "k3", over: Reduction = "mean", limit: float = 0.01
) -> Tensor:
    """0 for samples whose divergence of prox from mu exceeds *limit*, else 1 (masked importance
    sampling).

    With l = log prox - log mu per token: k1 = -l, k2 = l^2 / 2, k3 = exp(l) - 1 - l, taken together
    over the sample's tokens by *over*; for k1 the magnitude counts. ``mean`` of k1 within log 1.001
    is the band of geometric means of verl and NeMo-RL, which can leave out most samples (NeMo-RL
    #4243); ``sum`` leaves out long samples first.
    """
    log = (t.prox_logp - t.mu_logp).detach()
    return (_over(t, _divergence(log, estimate), over).abs() <= limit).to(log.dtype)


@correction(level="sequence", masks=True)
def trm(
    t: LossInputs,
    *,
    delta: float = 0.05,
    estimate: KLEstimate = "k3",
    over: Literal["max", "mean"] = "max",
) -> Tensor:
    """0 for samples in which some token's divergence of prox from mu exceeds *delta*, else 1:
    trust-region masking (2512.23075), whose bounds hold for whole samples or not at all.

    Args:
        delta: in nats. Trainers' thresholds range over two orders of magnitude: look at the masked
            share.
        estimate: of the divergence at a token, as in `sequence_mask`; k2 and k3 as in verl.
        over: ``max`` over the tokens, or their ``mean``.
    """
    log = (t.prox_logp - t.mu_logp).detach()
    return (_over(t, _divergence(log, estimate), over).abs() <= delta).to(log.dtype)


def _within(weight: Tensor, low: float, high: float) -> Tensor:
    """Return *weight*, or 0 outside the band. Not by a product: a weight that overflowed would give
    no number.
    """
    return torch.where((weight >= low) & (weight <= high), weight, torch.zeros_like(weight))


def _divergence(log: Tensor, estimate: KLEstimate) -> Tensor:
    if estimate == "k1":
        return -log
    if estimate == "k2":
        return log.square() / 2
    if estimate == "k3":
        return torch.expm1(log) - log
    raise UsageError(f"estimate is {estimate!r}; expected k1, k2 or k3")


def _over(t: LossInputs, value: Tensor, over: Reduction) -> Tensor:
    if over == "max":
        return t.sample_max(value.abs())
    if over not in ("sum", "mean"):
        raise UsageError(f"over is {over!r}; expected sum, mean or max")
    return t.sample_sum(value) if over == "sum" else t.sample_mean(value)
