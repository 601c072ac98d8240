"""Advantages: the reward of a sample less a baseline. Rewards are floats in double precision.

A group (or a batch, where that is the baseline) whose rewards are equal (`are_equal`: up to
``tolerance``, or the rounding of doubles of their size) gets exactly 0, so that the learner leaves
these samples out. With an epsilon of 0, rounding errors divided by their own spread would be
advantages of about 1. The price: real differences below the tolerance do not train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import Tensor

from ...errors import UsageError
from ...interfaces.algorithm import Algorithm
from ...interfaces.pieces import advantage, per_group
from ...types.rollout import SPREAD_TOLERANCE, are_equal
from ..batch import Batch


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

    def over(
        self,
        parts: Iterable[Sequence[int]],
        of_part: Callable[[list[float]], Sequence[float]],
        name: str,
    ) -> list[float]:
        """Apply *of_part* to the rewards of each of *parts*, which have the indices of samples, and
        return the values in the order of the samples. *name* is for errors.

        Raises:
            UsageError: it gives another number of values than rewards.
        """
        values = [0.0] * len(self.rewards)
        for indices in parts:
            given = of_part([self.rewards[i] for i in indices])
            if given is None or len(given) != len(indices):
                raise UsageError(f"advantage {name} gave {given!r} for {len(indices)} rewards")
            # The samples of a part need not stand side by side in the batch.
            for i, value in zip(indices, given, strict=True):
                values[i] = float(value)
        return values


def centre(rewards: Sequence[float], tolerance: float) -> list[float]:
    """Return R - mean, exactly 0 where the rewards are equal."""
    # The mean of equal rewards may be off by a rounding error, which is no reason to learn.
    if are_equal(rewards, tolerance):
        return [0.0] * len(rewards)
    # `fsum` rounds once, so that the order of the samples changes no bit.
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardise(
    rewards: Sequence[float], epsilon: float, ddof: int, tolerance: float
) -> list[float]:
    """Return (R - mean) / (std + epsilon), 0 where there is no spread to divide by."""
    centred = centre(rewards, tolerance)
    # Rewards that are no more than ddof have no standard deviation.
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
def group_mean(rewards: Sequence[float], *, tolerance: float = SPREAD_TOLERANCE) -> list[float]:
    """R - mean(group): Dr. GRPO (Liu et al. 2025, 2503.20783). The expected gradient is
    (G - 1) / G of the true one, with G the samples of the group: the valid rollouts, or those in
    which a player of several sampled.
    """
    return centre(rewards, tolerance)


@per_group(fits=remark_on_spread)
def group_norm(
    rewards: Sequence[float],
    *,
    epsilon: float = 1e-4,
    ddof: int = 0,
    tolerance: float = SPREAD_TOLERANCE,
) -> list[float]:
    """(R - mean) / (std + epsilon) over the group: GRPO (Shao et al. 2024, 2402.03300, section
    4.1.2).

    The paper gives neither ddof nor epsilon. Here ddof is 0 (as in GRPO-Zero, nano-aha-moment and
    open-instruct; TRL, verl and OpenRLHF take 1) and epsilon 1e-4 (TRL, GRPO-Zero), which damps
    near-ties that pass the tolerance.
    """
    return standardise(rewards, epsilon, ddof, tolerance)


@advantage
def leave_one_out(step: Step, *, tolerance: float = SPREAD_TOLERANCE) -> list[float]:
    """R_i - mean of the others = G / (G - 1) (R_i - mean): RLOO (Ahmadian et al. 2024, 2402.14740,
    equation 7). Unbiased where every group has at least two samples.

    A group of one has no others and gets 0. But a further player may be there in a single rollout
    of a group: these are compared with one another over the groups of an environment, which is
    unbiased, too.
    """

    def of_part(rewards: list[float]) -> list[float]:
        # By `centre`, so that equal rewards give exactly 0.
        others = max(1, len(rewards) - 1)
        return [centred * len(rewards) / others for centred in centre(rewards, tolerance)]

    alone: dict[tuple[str, str], list[int]] = {}
    for i, *others in step.groups:
        sample = step.batch.samples[i]
        if sample.player and not others:
            alone.setdefault((sample.environment, sample.player), []).append(i)
    # what comes later holds
    return step.over([*step.groups, *alone.values()], of_part, "leave_one_out")


@advantage
def raw(step: Step) -> list[float]:
    """R itself: REINFORCE without a baseline (Williams 1992). Unbiased, of large variance."""
    return list(step.rewards)


NormalisedOver = Literal["batch", "environment"]


@advantage
def batch_mean(
    step: Step, *, over: NormalisedOver = "batch", tolerance: float = SPREAD_TOLERANCE
) -> list[float]:
    """R - mean(batch). The expected gradient is (S - 1) / S of the true one for S independent
    samples, of any tasks. With ``environment``, S is the number of that environment's samples.

    Args:
        over: ``environment``: the mean of the samples of the same environment.
    """
    return step.over(parts_of(step, over), partial(centre, tolerance=tolerance), "batch_mean")


@advantage
def ema(
    step: Step, *, decay: float = 0.9, state: Any = None
) -> tuple[list[float], dict[str, float]]:
    """R - moving average of earlier batch means; unbiased, as the baseline has not seen this batch.

    The average is corrected for its start at nothing (divided by 1 - decay^k after k batches); the
    first batch has baseline 0.
    """
    before = state or {"average": 0.0, "weight": 0.0}
    # The weight, 1 - decay^k, is what k batches hold together: the rest is the 0 it began at.
    baseline = before["average"] / before["weight"] if before["weight"] else 0.0
    mean = math.fsum(step.rewards) / max(1, len(step.rewards))
    # The average takes this batch only now: a baseline that has seen it would be biased.
    after = {
        "average": decay * before["average"] + (1 - decay) * mean,
        "weight": decay * before["weight"] + (1 - decay),
    }
    return [reward - baseline for reward in step.rewards], after


def parts_of(step: Step, over: NormalisedOver) -> list[list[int]]:
    """Return the indices of the samples that are taken together: all, or those of each environment."""
    if over not in ("batch", "environment"):
        raise UsageError(f"over is {over!r}; expected batch or environment")
    parts: dict[str, list[int]] = {}
    for i, sample in enumerate(step.batch.samples):
        name = sample.environment if over == "environment" else ""
        parts.setdefault(name, []).append(i)
    return list(parts.values())
