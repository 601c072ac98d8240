"""The loss of preference pairs (Bradley and Terry 1952), and how well scores predict
preferences.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quintain.evaluation import wilson

BINS = 10
"""Bins of the calibration error."""


def bradley_terry_loss(
    chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0, centering: float = 0.0
) -> Tensor:
    """Return the loss of each pair, in nats, shape (pairs,): -log sigmoid(r_c - r_r - margin) +
    centering (r_c + r_r)^2.

    The first term is the negative log-likelihood of the preference in the model of Bradley and
    Terry (Ouyang et al. 2022, 2203.02155, equation 1), with the margin of Llama 2 (2307.09288,
    equation 2). The second one keeps scores near 0 (Eisenstein et al. 2023, 2312.09244), since the
    first one fixes differences alone.

    Args:
        chosen, rejected: scores r_c and r_r, shape (pairs,).
        margin: the difference that a pair must exceed, a number or one per pair.
    """
    loss = -torch.nn.functional.logsigmoid(chosen - rejected - margin)
    return loss + centering * (chosen + rejected).square() if centering else loss


@dataclass(frozen=True, kw_only=True)
class PairMetrics:
    """How well scores predict the preferences of held-out pairs.

    Attributes:
        accuracy: share of the pairs whose chosen reply scores higher; a tie counts half.
        low, high: its 95 % interval (Wilson at the effective number of pairs: those of one prompt
            resemble each other).
        loss: mean -log sigmoid(r_c - r_r), in nats; log 2 = 0.693 for scores that say nothing.
        calibration_error: expected calibration error of sigmoid(|r_c - r_r|) as the forecast that
            the reply with the higher score is the chosen one, in ten bins from 0.5 to 1 (Guo et al.
            2017, 1706.04599, equation 3).
        confidence: mean of these forecasts; above *accuracy* the model is overconfident.
        margin: mean r_c - r_r.
    """

    pairs: int
    accuracy: float
    low: float
    high: float
    loss: float
    calibration_error: float
    confidence: float
    margin: float

    @classmethod
    def of(cls, differences: Sequence[float], prompts: Sequence[Hashable]) -> PairMetrics:
        """Return the metrics of *differences* r_c - r_r, at least one, of the pairs of *prompts*."""
        count = len(differences)
        right = [1.0 if d > 0 else 0.5 if d == 0 else 0.0 for d in differences]
        sure = [1 / (1 + math.exp(-min(abs(d), 700.0))) for d in differences]
        gaps: dict[int, float] = {}
        for forecast, outcome in zip(sure, right, strict=True):
            bin_index = min(int((forecast - 0.5) * 2 * BINS), BINS - 1)
            gaps[bin_index] = gaps.get(bin_index, 0.0) + forecast - outcome
        accuracy = math.fsum(right) / count
        low, high = wilson(accuracy, _effective_pairs(right, prompts))
        return cls(
            pairs=count,
            accuracy=accuracy,
            low=low,
            high=high,
            loss=math.fsum(softplus(-d) for d in differences) / count,
            calibration_error=math.fsum(map(abs, gaps.values())) / count,
            confidence=math.fsum(sure) / count,
            margin=math.fsum(differences) / count,
        )


def _effective_pairs(right: Sequence[float], prompts: Sequence[Hashable]) -> float:
    """Return how many independent pairs *right* is worth: p (1 - p) over the variance of its mean,
    clustered by prompt (Cochran 1977, equation 11.30), between the number of prompts and of pairs.
    """
    count = len(right)
    accuracy = math.fsum(right) / count
    sums: defaultdict[Hashable, float] = defaultdict(float)
    for prompt, value in zip(prompts, right, strict=True):
        sums[prompt] += value - accuracy
    clusters = len(sums)
    if clusters == count:
        return float(count)
    if clusters == 1 or accuracy in (0.0, 1.0):
        return float(clusters)
    squares = math.fsum(total * total for total in sums.values())
    variance = squares / count**2 * clusters / (clusters - 1)
    if variance == 0:
        return float(count)
    return min(float(count), max(float(clusters), accuracy * (1 - accuracy) / variance))


def softplus(x: float) -> float:
    """Compute log(1 + exp(x)) without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
