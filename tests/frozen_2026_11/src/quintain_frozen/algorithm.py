"""An objective, an advantage, and the record that combines them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from quintain import KL, objective, per_group
from quintain.learning import ALGORITHMS, LossInputs


@per_group
def above_mean(rewards: Sequence[float]) -> list[float]:
    """The reward minus the mean of its group."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


@objective(idle=True)
def capped(t: LossInputs, *, cap: float = 2.0) -> Tensor:
    """-min(r, cap) A per token.

    Args:
        cap: the largest ratio that is trained on.
    """
    return -t.ratio().clamp(max=cap) * t.advantage


CAP = replace(
    ALGORITHMS["dr_grpo"],
    name="frozen_cap",
    summary="Dr. GRPO with a cap on the ratio.",
    source="none",
    advantage=above_mean,
    objective=capped,
    kl=KL(),
    published={},
)
