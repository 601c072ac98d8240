"""Advantages: the reward of a sample less a baseline. Rewards are floats in double precision, so
that a tolerance of 1e-6 is above their rounding.

A group (or a batch, where that is the baseline) whose rewards differ by no more than ``tolerance``
times max(1, the largest magnitude) gets exactly 0. Otherwise dividing rounding errors by their
spread would turn constant rewards into advantages of about 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from ...errors import UsageError
from ...interfaces.algorithm import Algorithm
from ...interfaces.pieces import advantage, per_group
from ..batch import Batch
from ..microbatch import FlatTokens

TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Step:
    """All groups of a step, as an advantage sees them.

    Attributes:
        batch: the samples.
        rewards: total reward per sample plus the overlong punishment, less the KL term where that
            is in the reward.
        penalty: coefficient times KL estimate of each token, where the KL is in the reward, else
            ``None``; [N]. The entry of a sample in `rewards` is its total plus the overlong
            punishment less the sum of `penalty` over its tokens.
        statistics: ``mu_logp``, ``prox_logp`` (where it was scored), ``ref_logp`` (where it is
            used) and what the piece reads, under prox, [N].
    """

    batch: Batch
    rewards: tuple[float, ...]
    penalty: Tensor | None = None
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each group's samples."""
        return self.batch.groups

    def over_groups(
        self, of_group: Callable[[list[float]], Sequence[float]], name: str
    ) -> list[float]:
        """Return a value of each sample, by the advantage *name*, which gives those of a group for
        its rewards.

        Raises:
            UsageError: it gives another number of values than rewards.
        """
        values = [0.0] * len(self.rewards)
        for indices in self.groups:
            group = of_group([self.rewards[i] for i in indices])
            if group is None or len(group) != len(indices):
                raise UsageError(f"advantage {name} gave {group!r} for {len(indices)} rewards")
            for i, value in zip(indices, group, strict=True):
                values[i] = float(value)
        return values

    @property
    def sample_of_tokens(self) -> Tensor:
        """Which sample each trained token belongs to, in the order of the samples, [N]."""
        return FlatTokens(batch=self.batch).sample


def is_constant(rewards: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Return whether *rewards* differ by at most *tolerance* times the largest magnitude (1 at
    least).
    """
    return not rewards or max(rewards) - min(rewards) <= tolerance * max(1.0, *map(abs, rewards))


def centre(rewards: Sequence[float], tolerance: float) -> list[float]:
    if is_constant(rewards, tolerance):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardise(
    rewards: Sequence[float], epsilon: float, ddof: int, tolerance: float
) -> list[float]:
    centred = centre(rewards, tolerance)
    if not any(centred) or len(rewards) <= ddof:
        return [0.0] * len(rewards)
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - ddof))
    return [c / (std + epsilon) for c in centred]


def remark_on_spread(algorithm: Algorithm) -> str | None:
    """Return the remark of an advantage that divides by the spread of its group's rewards."""
    if not algorithm.kl.in_reward or algorithm.group_filter.name == "varied":
        return None
    return (
        f"{algorithm.advantage!r} divides by the spread of the group: where all answers earn the "
        "same, that of the KL penalty alone, so such groups train on it at full size; accept "
        "varied groups only"
    )


@per_group
def group_mean(rewards: Sequence[float], *, tolerance: float = TOLERANCE) -> list[float]:
    """R - mean(group): Dr. GRPO (Liu et al. 2025, 2503.20783). Its expectation is (G - 1) / G of
    the true gradient.
    """
    return centre(rewards, tolerance)


@per_group(fits=remark_on_spread)
def group_norm(
    rewards: Sequence[float], *, epsilon: float = 1e-4, ddof: int = 0, tolerance: float = TOLERANCE
) -> list[float]:
    """(R - mean) / (std + epsilon) over the group: GRPO (Shao et al. 2024, 2402.03300, section
    4.1.2).

    The paper gives neither ddof nor epsilon. Here ddof is 0 (as in GRPO-Zero, nano-aha-moment and
    open-instruct; TRL, verl and OpenRLHF take 1) and epsilon 1e-4 (TRL, GRPO-Zero), which damps
    near-ties that pass the tolerance.
    """
    return standardise(rewards, epsilon, ddof, tolerance)


@per_group
def leave_one_out(rewards: Sequence[float], *, tolerance: float = TOLERANCE) -> list[float]:
    """R_i - mean of the others = G / (G - 1) (R_i - mean): RLOO (Ahmadian et al. 2024, 2402.14740,
    equation 7). Unbiased.

    A group of one has no others and gets 0.
    """
    size = len(rewards)
    return [c * size / (size - 1) for c in centre(rewards, tolerance)] if size > 1 else [0.0]


@advantage
def raw(step: Step) -> list[float]:
    """R itself: REINFORCE without a baseline (Williams 1992). Unbiased, of large variance."""
    return list(step.rewards)


NormalisedOver = Literal["batch", "environment"]


@advantage
def batch_mean(
    step: Step, *, over: NormalisedOver = "batch", tolerance: float = TOLERANCE
) -> list[float]:
    """R - mean(batch). Its expectation is (S - 1) / S of the true gradient for S independent
    samples of one task.

    Args:
        over: ``environment``: the mean of the samples of the same environment.
    """
    out = [0.0] * len(step.rewards)
    for indices in parts_of(step, over):
        for i, value in zip(
            indices, centre([step.rewards[i] for i in indices], tolerance), strict=True
        ):
            out[i] = value
    return out


@advantage
def ema(
    step: Step, *, decay: float = 0.9, state: Any = None
) -> tuple[list[float], dict[str, float]]:
    """R - moving average of earlier batch means; unbiased, as the baseline has not seen this batch.

    The average is corrected for its start at nothing (divided by 1 - decay^k after k batches); the
    first batch has baseline 0.
    """
    before = state or {"average": 0.0, "weight": 0.0}
    baseline = before["average"] / before["weight"] if before["weight"] else 0.0
    mean = math.fsum(step.rewards) / max(1, len(step.rewards))
    after = {
        key: decay * before[key] + (1 - decay) * value
        for key, value in (("average", mean), ("weight", 1.0))
    }
    return [reward - baseline for reward in step.rewards], after


def parts_of(step: Step, over: NormalisedOver) -> list[list[int]]:
    """Return the indices of the samples that are taken together: all, or those of each environment."""
    if over not in ("batch", "environment"):
        raise UsageError(f"over is {over!r}; expected batch or environment")
    names = [s.environment if over == "environment" else "" for s in step.batch.samples]
    return [[i for i, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]
