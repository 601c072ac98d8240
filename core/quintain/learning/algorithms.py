"""The table of algorithms: each algorithm carries its own defaults. `quintain list algorithms`
shows it, docs/algorithms.md compares the algorithms.

All learn in one update per batch unless stated: then theta is prox, every ratio to prox is 1, and
algorithms that differ in their trust region alone take the same step. ``published`` tells how many
updates a paper made.
"""

from __future__ import annotations

from ..interfaces.algorithm import KL, Algorithm
from ..interfaces.sampling_plan import SamplingPlan
from .pieces.advantages import batch_mean, group_mean, group_norm, leave_one_out
from .pieces.aggregation import constant, sequence, token
from .pieces.corrections import uncorrected
from .pieces.group_filter import minimum, varied
from .pieces.objectives import policy_gradient, ppo_clip

REINFORCE = Algorithm(
    name="reinforce",
    summary="Likelihood-ratio gradient with a batch-mean baseline (others: raw, ema, group_mean).",
    source="Williams 1992",
    advantage=batch_mean,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    group_filter=minimum.configure(samples=1),
    published={"group": 1, "temperature": 1.0},
)

GRPO = Algorithm(
    name="grpo",
    summary=(
        "Group-normalised advantage, PPO clip 0.2, sequence mean, k3 to the reference in the loss "
        "(0.04)."
    ),
    source="Shao et al. 2024, arXiv 2402.03300",
    advantage=group_norm,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=sequence,
    group_filter=minimum,
    kl=KL(where="loss", estimator="k3", coefficient=0.04),
    published={"group": 64, "temperature": 1.0},
)

RLOO = Algorithm(
    name="rloo",
    summary="Leave-one-out baseline, no ratio, no clip: the unbiased gradient of the expected reward.",
    source="Ahmadian et al. 2024, arXiv 2402.14740",
    advantage=leave_one_out,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    group_filter=minimum,
    published={"group": 4, "temperature": 1.0},
)

DR_GRPO = Algorithm(
    name="dr_grpo",
    summary="GRPO without its biases: no division by the spread, by the length of the answer, no KL.",
    source="Liu et al. 2025, arXiv 2503.20783",
    advantage=group_mean,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=constant,
    group_filter=minimum,
    published={"group": 8, "temperature": 1.0},
)

DAPO = Algorithm(
    name="dapo",
    summary="GRPO with clip-higher, token mean, dynamic sampling, soft overlong punishment, no KL.",
    source="Yu et al. 2025, arXiv 2503.14476",
    advantage=group_norm,
    objective=ppo_clip.configure(low=0.2, high=0.28),
    correction=uncorrected,
    aggregation=token,
    group_filter=varied,
    overlong=0.2,
    plan=SamplingPlan(resample="dynamic"),
    published={"group": 16, "minibatches": 16, "temperature": 1.0},
)

ALGORITHMS = {algorithm.name: algorithm for algorithm in (REINFORCE, GRPO, RLOO, DR_GRPO, DAPO)}
