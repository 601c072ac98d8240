"""The table of methods: each row carries its own defaults. `quintain list algorithms` shows it."""

from __future__ import annotations

from ..algorithm import KL, Row
from .admission import minimum
from .advantages import batch_mean, group_mean, group_norm, leave_one_out
from .aggregation import constant, sequence
from .corrections import uncorrected
from .objectives import policy_gradient, ppo_clip

REINFORCE = Row(
    name="reinforce",
    summary="likelihood-ratio gradient with a batch-mean baseline (others: raw, ema, group_mean, leave_one_out)",
    source="Williams 1992",
    advantage=batch_mean,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum.using(members=1),
    published={"group": 1, "temperature": 1.0},
)

GRPO = Row(
    name="grpo",
    summary="group-normalised advantage, PPO clip 0.2, sequence mean, k3 to the reference in the loss (0.04)",
    source="Shao et al. 2024, arXiv 2402.03300",
    advantage=group_norm,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=sequence,
    admission=minimum,
    kl=KL(where="loss", estimator="k3", coefficient=0.04),
    published={"group": 64, "temperature": 1.0},
)

DR_GRPO = Row(
    name="dr_grpo",
    summary="GRPO without its biases: no division by the spread, by the length of the answer, no KL",
    source="Liu et al. 2025, arXiv 2503.20783",
    advantage=group_mean,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    published={"group": 8, "temperature": 1.0},
)

RLOO = Row(
    name="rloo",
    summary="leave-one-out baseline, no ratio, no clip: the unbiased gradient of the expected reward",
    source="Ahmadian et al. 2024, arXiv 2402.14740",
    advantage=leave_one_out,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    published={"group": 4, "temperature": 1.0},
)

PRESETS = {row.name: row for row in (REINFORCE, GRPO, DR_GRPO, RLOO)}
