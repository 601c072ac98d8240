"""KTO: each sample is desirable or not by itself, so no pair is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quintain import advantage, objective
from quintain.learning import SUCCESS, LossInputs, reaches

from .imitation import fits as fits_labels
from .pairs import Found, fits, log_ratio

if TYPE_CHECKING:
    from quintain.learning import Step


@advantage(fits=fits_labels)
def desirable(step: Step, *, success: float = SUCCESS) -> list[float]:
    """1 for a sample that succeeded, -1 for the others: the labels of `kto`.

    Args:
        success: outcome from which on a sample is desirable.
    """
    return [1.0 if reaches(sample.outcome, success) else -1.0 for sample in step.batch.samples]


@objective(level="group", reads=("ref",), fits=fits)
def kto(t: LossInputs, *, beta: float = 0.1, desired: float = 1.0, undesired: float = 1.0) -> Found:
    """Mean over a group of desired (1 - sigmoid(beta (h - z))) for a desirable sample and of
    undesired (1 - sigmoid(beta (z - h))) for another one: Kahneman-Tversky optimisation (Ethayarajh
    et al. 2024, 2402.01306, equation 8).

    h is the sum over a sample's tokens of log theta - log ref, and z = max(0, mean of h) the
    reference point, which has no gradient. The mean is over the samples of a group. Where some of them
    have an advantage of exactly 0, it is over these alone, and they do not train: they are replies
    behind the prompts of others, for stored replies are not the policy's (`quintain preference`).

    z estimates KL(theta || ref), which is never negative, as the paper does (section 4.1: max(0,
    mean) over a microbatch). The estimate is biased in two ways:

    - The clamp raises it. If the mean of m samples of standard deviation s scatters around 0, z is
      0.4 s / sqrt(m) on average: 0.14 s for the 8 rows of `quintain preference`. At the first
      update h and z are exactly 0.
    - Replies to other prompts are not drawn from theta, so their mean is no KL and mostly lower.
      Of samples that the policy drew, the mean before the clamp is unbiased.

    Neither is corrected. A z that is off moves all samples of the group along their sigmoids: it
    changes how much each of them weighs, never whether it becomes likelier. More rows to a group
    would scatter less, but a group is computed in one pass, in which they would need more memory.

    A sample whose advantage is not 1 or -1 weighs as much as that is large.

    Args:
        beta: how fast the value saturates; 0.1 as in the paper and TRL.
        desired, undesired: weights of the two kinds; the paper keeps the ratio of their summed
            weights between 1 and 4/3.
    """
    h_S = t.sample_sum(log_ratio(t))
    advantage_S = t.sample_mean(t.advantage.detach())  # all tokens of a sample have the same
    label_S = advantage_S.sign()
    unlabelled_S = (label_S == 0).to(h_S.dtype)
    any_G = t.group_sum(unlabelled_S) > 0
    counted_S = torch.where(any_G[t.group], unlabelled_S, torch.ones_like(unlabelled_S))
    z_G = (t.group_sum(counted_S * h_S.detach()) / t.group_sum(counted_S)).clamp(min=0)
    weight_S = advantage_S.abs() * (
        desired * (label_S > 0).to(h_S) + undesired * (label_S < 0).to(h_S)
    )
    loss_S = weight_S * (1 - torch.sigmoid(beta * label_S * (h_S - z_G[t.group])))
    count_G = t.group_sum(label_S.abs())
    metrics = {"reference_point": z_G, **_rewards(beta * (h_S - z_G[t.group]).detach(), label_S)}
    return t.group_sum(loss_S) / count_G.clamp(min=1), metrics


def _rewards(reward_S: Tensor, label_S: Tensor) -> dict[str, Tensor]:
    """Return the implicit rewards of desirable and of other samples."""
    return {"desirable_reward": reward_S[label_S > 0], "undesirable_reward": reward_S[label_S < 0]}
