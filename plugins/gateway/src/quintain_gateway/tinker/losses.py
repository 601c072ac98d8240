"""The losses of Tinker's API: sums over tokens, from log-probs of the target tokens.

Source: tinker-docs.thinkingmachines.ai/tinker/losses, and the pages of each loss below it. With p the
log-prob under the model that trains, q that under the sampler, A the advantage and w the weight of a
token, r = exp(p - q), and c(r) = r held within the thresholds:

    cross_entropy        - sum w p
    importance_sampling  - sum r A
    ppo                  - sum min(r A, c(r) A)             (Schulman et al. 2017, 1707.06347)
    cispo                - sum sg[c(r)] p A                 (MiniMax 2025, 2506.13585)
    dro                  - sum (p A - beta / 2 (p - q)^2)   (Richemond et al. 2024, 2405.19107)
    gspo                 ppo with r = sg[s] exp(p - sg[p]), s the geometric mean of the tokens'
                         ratios where sequence_ratio_mask is not 0 (Zheng et al. 2025, 2507.18071)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import ApiError, invalid, unsupported

__all__ = ["check", "loss_of"]

LOW, HIGH, BETA = 0.8, 1.2, 0.05
"""Clip thresholds (0.2 on both sides) and the beta of dro where a request has none."""

_POLICY = ("target_tokens", "logprobs", "advantages")
_CLIP = ("clip_low_threshold", "clip_high_threshold")
INPUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "cross_entropy": (("target_tokens",), ("weights",), ()),
    "importance_sampling": (_POLICY, (), ()),
    "ppo": (_POLICY, _CLIP, _CLIP),
    "cispo": (_POLICY, _CLIP, _CLIP),
    "dro": (_POLICY, (), ("beta",)),
    "gspo": ((*_POLICY, "sequence_ratio_mask"), _CLIP, _CLIP),
}
"""By loss: the tensors that a datum must have, those that it may have, and the settings."""
REFUSED = {
    "stable_reinforce": "its formula is not published; take importance_sampling, ppo, cispo or gspo",
    "custom": "a loss is run by the client here: the server offers no upload of one",
}


def check(loss: str, names: Mapping[str, object], config: Mapping[str, float | str]) -> None:
    """Check that *loss* is known, and reads all tensors *names* of a datum and all of *config*.

    Raises:
        ApiError: 400, with what is wrong.
    """
    if loss in REFUSED:
        raise unsupported("loss_fn", f"loss_fn {loss!r} is not served: {REFUSED[loss]}")
    if loss not in INPUTS:
        raise invalid(f"loss_fn {loss!r} is unknown; there are {', '.join(INPUTS)}", "loss_fn")
    needed, optional, settings = INPUTS[loss]
    if missing := [name for name in needed if name not in names]:
        raise _wrong(loss, f"needs {', '.join(missing)}")
    if unread := sorted(set(names) - {*needed, *optional}):
        raise _wrong(loss, f"does not read {', '.join(unread)}")
    if unread := sorted(set(config) - {*settings}):
        raise invalid(f"{loss} has no setting {', '.join(unread)}", "loss_fn_config")
    for name, value in config.items():
        if isinstance(value, str) or not math.isfinite(value):
            raise invalid(f"{name} is {value!r}; expected a number", "loss_fn_config")


def loss_of(
    loss: str, logp: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float | str]
) -> Tensor:
    """Return the loss of one datum, a scalar.

    Args:
        logp: log-probs of the target tokens, [N] (or [N, K] for cross_entropy).
        inputs: the other tensors of the datum, of the same shape.
    """
    if loss == "cross_entropy":
        weights = inputs.get("weights")
        return -(logp.sum() if weights is None else (logp * weights).sum())
    sampled, advantages = inputs["logprobs"], inputs["advantages"]
    if loss == "dro":
        beta = float(config.get("beta", BETA))
        return -(logp * advantages - 0.5 * beta * (logp - sampled).square()).sum()
    ratio = (logp - sampled).exp()
    if loss == "importance_sampling":
        return -(ratio * advantages).sum()
    low, high = (_threshold(i, inputs, config) for i in (0, 1))
    if loss == "cispo":
        kept = ratio.detach().clamp(low.to(ratio), high.to(ratio))
        return -(kept * logp * advantages).sum()
    if loss == "gspo":
        taken = inputs["sequence_ratio_mask"] != 0
        mean = (logp.detach() - sampled)[taken].mean() if taken.any() else logp.new_zeros(())
        ratio = (mean + logp - logp.detach()).exp()
    clipped = ratio.clamp(low.to(ratio), high.to(ratio))
    return -torch.min(ratio * advantages, clipped * advantages).sum()


def _threshold(
    which: int, inputs: Mapping[str, Tensor], config: Mapping[str, float | str]
) -> Tensor:
    name = _CLIP[which]
    given = inputs.get(name)
    return torch.tensor(float(config.get(name, (LOW, HIGH)[which]))) if given is None else given


def _wrong(loss: str, what: str) -> ApiError:
    return invalid(f"loss_fn_inputs: {loss} {what}", "loss_fn_inputs")
