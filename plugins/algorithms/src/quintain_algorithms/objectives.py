"""Objectives of the algorithms in this package: ratios of whole samples, capped weights, masks by
divergence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quintain import Algorithm, objective
from quintain.errors import UsageError
from quintain.learning import LossInputs, objectives

WithMetrics = tuple[Tensor, dict[str, Tensor]]


def _fits_whole_samples(algorithm: Algorithm) -> None:
    """Refuse to weigh a term that sums over its sample's tokens by their number once more."""
    if algorithm.aggregation.name in ("token", "constant", "prompt", "winners"):
        raise UsageError(
            f"algorithm {algorithm.name!r}: a term of {algorithm.objective!r} is a sum over the "
            f"tokens of a sample already, and {algorithm.aggregation!r} would weigh it by their "
            "number once more; set aggregation = 'sequence'"
        )


@objective(
    level="sequence",
    idle=True,
    clips=("low", "high"),
    check=objectives.check_dual,
    fits=_fits_whole_samples,
)
def sequence_clip(
    t: LossInputs, *, low: float = 0.2, high: float | None = None, dual: float | None = None
) -> WithMetrics:
    """`ppo_clip` of whole samples: the ratio is the product over the sample's tokens (as in TRL's
    RLOO). It is the exact importance ratio of the sample, and leaves any band the sooner the longer
    the sample is. Unclipped, with the aggregation ``sequence``, its expected gradient is that of
    the expected reward also off-policy.

    The advantage of a sample is the mean of its tokens'.
    """
    return _of_samples(
        t,
        *objectives.clip_terms(t.log_ratio("product"), t.sample_mean(t.advantage), low, high, dual),
    )


@objective(level="sequence", idle=True, clips=("low", "high"))
def gspo(t: LossInputs, *, low: float = 3e-4, high: float | None = 4e-4) -> WithMetrics:
    """`ppo_clip` of whole samples with s = (theta(y) / ratio_to(y))^(1 / T), the geometric mean of
    the tokens' ratios: GSPO (Zheng et al. 2025, 2507.18071, equations 5 to 7). Its bounds are
    hundreds of times narrower than those of a token's ratio; with 0.2 nothing would ever be
    clipped.

    The advantage of a sample is the mean of its tokens'.
    """
    return _of_samples(
        t,
        *objectives.clip_terms(
            t.log_ratio("geometric"), t.sample_mean(t.advantage), low, high, None
        ),
    )


@objective(idle=True, clips=("low", "high"))
def gspo_token(t: LossInputs, *, low: float = 3e-4, high: float | None = 4e-4) -> WithMetrics:
    """GSPO with an advantage per token: the ratio has the value of the sample's s and the gradient
    of the token's log-prob (2507.18071, equations 13 and 14). Equal to `gspo`, values and
    gradients, where a sample's advantages are.
    """
    log_ratio = t.spread(t.log_ratio("geometric").detach()) + (t.logp - t.logp.detach())
    return objectives.clip_terms(log_ratio, t.advantage, low, high, None)


@objective(idle=True)
def cispo(t: LossInputs, *, cap: float = 5.0) -> WithMetrics:
    """-stopgrad(min(r, cap)) A log theta: the weight is capped, no token's gradient is dropped
    (CISPO; MiniMax 2025, 2506.13585, equation 4).

    Args:
        cap: the ratio itself, not its distance from 1. TRL reads ``epsilon_high`` like this, verl
            and NeMo-RL as 1 + high; there is no lower clip, as in the paper's runs. 5 as in TRL's
            documentation and SkyRL.
    """
    ratio = t.ratio().detach()
    return -ratio.clamp(max=cap) * t.advantage * t.logp, {"clip.high": ratio > cap}


@objective(idle=True)
def dppo_tv(t: LossInputs, *, delta: float = 0.15, cap: float = 20.0) -> WithMetrics:
    """-stopgrad(min(r, cap)) A log theta, without the tokens that the step has already moved by
    more than *delta* in the direction of A, in probability: binary total variation (DPPO,
    2602.04879).

    A token is dropped where A > 0 and theta - ratio_to > delta, or A < 0 and theta - ratio_to <
    -delta. The paper's ratio_to is mu. Unlike a clip of the ratio this leaves rare tokens free and
    holds likely ones.

    Args:
        cap: of the weight; 20 as verl means it to be (its configuration class sets 3).
    """
    moved = t.logp.detach().exp() - _ratio_to_logp(t).exp()
    return _masked(
        t, (t.advantage > 0) & (moved > delta), (t.advantage < 0) & (moved < -delta), cap
    )


@objective(idle=True)
def dppo_kl(t: LossInputs, *, delta: float = 0.05, cap: float = 20.0) -> WithMetrics:
    """`dppo_tv` with the binary KL(ratio_to || theta) of "this token or another" in nats as the
    measure (2602.04879).
    """
    far = _binary_kl(_ratio_to_logp(t), t.logp.detach()) > delta
    up = t.log_ratio().detach() > 0
    return _masked(t, (t.advantage > 0) & up & far, (t.advantage < 0) & ~up & far, cap)


def _fits_top_of_prox(algorithm: Algorithm) -> None:
    if algorithm.ratio_to == "mu":
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.objective!r} compares theta with prox's "
            "likeliest tokens, since samplers report the sampled token alone; set ratio_to = "
            "'prox'"
        )


@objective(reads=("ratio", "top"), idle=True, fits=_fits_top_of_prox)
def dppo_top(
    t: LossInputs, *, delta: float = 0.15, cap: float = 20.0, top: int = 20
) -> WithMetrics:
    """`dppo_tv` with the total variation over the *top* likeliest tokens, the sampled one, and all
    others as one (2602.04879).

    The likeliest tokens are prox's, as samplers report log-probs of the sampled token only; the
    paper takes mu's.
    """
    before = t.statistics["prox_top_logp"].exp()
    now = t.statistics["top_logp"].detach().exp()
    sampled_before = t.prox_logp.exp()
    sampled_now = t.logp.detach().exp()
    outside_top = ~t.statistics["prox_top_has"]  # the sampled token is a part of its own
    within = (now - before).abs().sum(1) + torch.where(
        outside_top, (sampled_now - sampled_before).abs(), 0.0
    )
    rest_before = 1 - before.sum(1) - torch.where(outside_top, sampled_before, 0.0)
    rest_now = 1 - now.sum(1) - torch.where(outside_top, sampled_now, 0.0)
    far = (within + (rest_now - rest_before).abs()) / 2 > delta
    up = t.log_ratio().detach() > 0
    return _masked(t, (t.advantage > 0) & up & far, (t.advantage < 0) & ~up & far, cap)


@objective(level="sequence", fits=_fits_whole_samples)
def mirror_descent(t: LossInputs, *, tau: float = 0.1) -> Tensor:
    """(A - tau d)^2 / (2 tau) per sample, d = log theta(y) - log ratio_to(y): the squared loss of
    Kimi k1.5 (2501.12599, equation 3), with gradient -A grad log theta + tau / 2 grad d^2.

    The paper divides by nothing; the factor 1 / (2 tau) makes the gradient that of its equation 4.
    With A = R - mean(group) the mean stands for tau log Z (an approximation). The paper does not
    give tau. verl's nearest loss takes d per token.
    """
    d = t.log_ratio("product")
    return (t.sample_mean(t.advantage) - tau * d).square() / (2 * tau)


def _of_samples(t: LossInputs, terms: Tensor, shares: dict[str, Tensor]) -> WithMetrics:
    """Tell the shares of clipped samples token by token, so that they weigh as their lengths do."""
    return terms, {name: t.spread(value) for name, value in shares.items()}


def _masked(t: LossInputs, above: Tensor, below: Tensor, cap: float) -> WithMetrics:
    ratio = t.ratio().detach().clamp(max=cap)
    trained = ~(above | below)
    return -ratio * t.advantage * t.logp * trained, {"clip.low": below, "clip.high": above}


def _ratio_to_logp(t: LossInputs) -> Tensor:
    return t.mu_logp if t.ratio_to == "mu" else t.prox_logp


def _binary_kl(p_log: Tensor, q_log: Tensor) -> Tensor:
    """Return the KL between two coins with the heads p and q, in nats."""
    # A probability that rounds to 1 leaves a rest of 1e-12, not of 0: 0 times infinity is no
    # number.
    p_rest = (-torch.expm1(p_log.clamp(max=-1e-12))).log()
    q_rest = (-torch.expm1(q_log.clamp(max=-1e-12))).log()
    return p_log.exp() * (p_log - q_log) + p_rest.exp() * (p_rest - q_rest)
