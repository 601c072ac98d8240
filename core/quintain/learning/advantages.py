"""Advantages: what a sample's reward is compared with. Rewards are plain floats (double precision), so tolerances mean
something.

A group, or a batch where that is the baseline, whose rewards differ by no more than ``tolerance`` gets exactly 0: in
floating point "subtract the mean, divide by the spread" turns constant rewards of 0.7 into advantages of a hundred
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..algorithm import advantage, per_group
from .batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Step:
    """All groups of a step, as an advantage sees them.

    Attributes:
        batch: the samples.
        rewards: total reward per sample, less the KL term where that is in the reward.
        statistics: what the piece reads, under prox, per trained token in the order of the samples, [N].
    """

    batch: Batch
    rewards: tuple[float, ...]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each group's members."""
        return self.batch.groups


def is_constant(rewards: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether *rewards* differ by at most *tolerance* times the largest magnitude (1 at least)."""
    if not rewards:
        return True
    return max(rewards) - min(rewards) <= tolerance * max(1.0, *map(abs, rewards))


def _centred(rewards: Sequence[float], tolerance: float) -> list[float]:
    if is_constant(rewards, tolerance):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


@per_group
def group_mean(rewards: Sequence[float], *, tolerance: float = TOLERANCE) -> list[float]:
    """R - mean(group): Dr. GRPO (Liu et al. 2025, 2503.20783). Its expectation is (G - 1) / G of the true gradient."""
    return _centred(rewards, tolerance)


@per_group
def group_norm(
    rewards: Sequence[float], *, epsilon: float = 1e-4, ddof: int = 0, tolerance: float = TOLERANCE
) -> list[float]:
    """(R - mean) / (std + epsilon) over the group: GRPO (Shao et al. 2024, 2402.03300, section 4.1.2).

    The paper gives neither ddof nor epsilon. Here ddof is 0 (as in GRPO-Zero, nano-aha-moment and open-instruct; TRL,
    verl and OpenRLHF take 1) and epsilon 1e-4 (TRL, GRPO-Zero), which damps near-ties that pass the tolerance.
    """
    centred = _centred(rewards, tolerance)
    if not any(centred) or len(rewards) <= ddof:
        return [0.0] * len(rewards)
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - ddof))
    return [c / (std + epsilon) for c in centred]


@per_group
def leave_one_out(rewards: Sequence[float], *, tolerance: float = TOLERANCE) -> list[float]:
    """R_i - mean of the others = G / (G - 1) (R_i - mean): RLOO (Ahmadian et al. 2024, 2402.14740, equation 7).
    Unbiased.

    A group of one has no others and gets 0.
    """
    size = len(rewards)
    return [c * size / (size - 1) for c in _centred(rewards, tolerance)] if size > 1 else [0.0]


@advantage
def raw(step: Step) -> list[float]:
    """R itself: REINFORCE without a baseline (Williams 1992). Unbiased, of large variance."""
    return list(step.rewards)


@advantage
def batch_mean(step: Step, *, tolerance: float = TOLERANCE) -> list[float]:
    """R - mean(batch). Its expectation is (N - 1) / N of the true gradient for N independent samples of one task."""
    return _centred(step.rewards, tolerance)


@advantage
def ema(step: Step, *, decay: float = 0.9, state: Any = None) -> tuple[list[float], dict[str, float]]:
    """R - moving average of earlier batch means; unbiased, as the baseline has not seen this batch.

    The average is corrected for its start at nothing (divided by 1 - decay^k after k batches); the first batch has
    baseline 0.
    """
    held = state or {"average": 0.0, "weight": 0.0}
    baseline = held["average"] / held["weight"] if held["weight"] else 0.0
    mean = math.fsum(step.rewards) / max(1, len(step.rewards))
    after = {key: decay * held[key] + (1 - decay) * value for key, value in (("average", mean), ("weight", 1.0))}
    return [reward - baseline for reward in step.rewards], after
