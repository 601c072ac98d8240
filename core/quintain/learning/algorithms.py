"""The table of methods: each row carries its own defaults. `quintain list algorithms` shows it, docs/algorithms.md
compares the rows.

All learn in one update per batch unless stated: then theta is prox, every ratio to prox is 1, and rows that differ in
their trust region alone take the same step. ``published`` tells how many updates a paper made.
"""

from __future__ import annotations

from ..interfaces.algorithm import KL, Row
from ..interfaces.sampling_plan import Plan
from ..types.sampling import Interrupt
from .pieces.advantages import (
    batch_mean,
    batch_norm,
    group_mean,
    group_norm,
    leave_one_out,
    maxrl,
    ones,
    optimal_token,
    reinforce_pp,
    reinforce_pp_baseline,
)
from .pieces.aggregation import constant, prompt, sequence, token
from .pieces.corrections import tis, trm, uncorrected
from .pieces.group_filter import minimum, varied
from .pieces.objectives import cispo, dppo_tv, gspo, importance, mirror_descent, policy_gradient, ppo_clip

REINFORCE = Row(
    name="reinforce",
    summary="Likelihood-ratio gradient with a batch-mean baseline (others: raw, ema, group_mean, greedy).",
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
    summary="Group-normalised advantage, PPO clip 0.2, sequence mean, k3 to the reference in the loss (0.04).",
    source="Shao et al. 2024, arXiv 2402.03300",
    advantage=group_norm,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=sequence,
    admission=minimum,
    kl=KL(where="loss", estimator="k3", coefficient=0.04),
    published={"group": 64, "temperature": 1.0},
)

RLOO = Row(
    name="rloo",
    summary="Leave-one-out baseline, no ratio, no clip: the unbiased gradient of the expected reward.",
    source="Ahmadian et al. 2024, arXiv 2402.14740",
    advantage=leave_one_out,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    published={"group": 4, "temperature": 1.0},
)

REINFORCE_PP = Row(
    name="reinforce_pp",
    summary="Return with a KL penalty per token, whitened over all tokens of the batch; PPO clip, no groups.",
    source="Hu et al. 2025, arXiv 2501.03262",
    advantage=reinforce_pp,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=token,
    admission=minimum.using(members=1),
    kl=KL(where="reward", estimator="k1", coefficient=0.01),
    published={"group": 1, "temperature": 1.0},
)

REINFORCE_PP_BASELINE = Row(
    name="reinforce_pp_baseline",
    summary="Reward less the group's mean, whitened over the batch; PPO clip, k2 to the reference in the loss.",
    source="Hu et al. 2025, arXiv 2501.03262, section 3.2",
    advantage=reinforce_pp_baseline,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=token,
    admission=minimum,
    kl=KL(where="loss", estimator="k2", coefficient=0.01),
    published={"group": 8, "temperature": 1.0},
)

DR_GRPO = Row(
    name="dr_grpo",
    summary="GRPO without its biases: no division by the spread, by the length of the answer, no KL.",
    source="Liu et al. 2025, arXiv 2503.20783",
    advantage=group_mean,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    published={"group": 8, "temperature": 1.0},
)

DAPO = Row(
    name="dapo",
    summary="GRPO with clip-higher, token mean, dynamic sampling, soft overlong punishment, no KL.",
    source="Yu et al. 2025, arXiv 2503.14476",
    advantage=group_norm,
    objective=ppo_clip.using(low=0.2, high=0.28),
    correction=uncorrected,
    aggregation=token,
    admission=varied,
    overlong=0.2,
    plan=Plan(refill="rounds"),
    published={"group": 16, "minibatches": 16, "temperature": 1.0},
)

CISPO = Row(
    name="cispo",
    summary="The importance weight is capped and carries no gradient, so no token is ever dropped.",
    source="MiniMax 2025, arXiv 2506.13585",
    advantage=group_norm,
    objective=cispo,
    correction=uncorrected,
    aggregation=token,
    admission=minimum,
    published={"group": 16, "minibatches": 16, "temperature": 1.0},
)

GSPO = Row(
    name="gspo",
    summary="One ratio per answer, the geometric mean of its tokens', clipped at 3e-4 and 4e-4.",
    source="Zheng et al. 2025, arXiv 2507.18071",
    advantage=group_norm,
    objective=gspo,
    correction=uncorrected,
    aggregation=sequence,
    admission=minimum,
    published={"minibatches": 4, "temperature": 1.0},
)

DPPO = Row(
    name="dppo",
    summary="Drops tokens that moved too far from the sampler in probability (binary TV 0.15), not in ratio.",
    source="2026, arXiv 2602.04879",
    advantage=group_mean,
    objective=dppo_tv,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    anchor="mu",
    published={"temperature": 1.0},
)

MAXRL = Row(
    name="maxrl",
    summary="Advantage (R - mean) / mean: climbs a truncation of the log success rate; hard tasks weigh more.",
    source="2026, arXiv 2602.02710",
    advantage=maxrl,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    published={"temperature": 1.0},
)

KIMI = Row(
    name="kimi",
    summary="Mirror descent by a squared loss on the log-ratio of whole answers; the optimizer starts anew.",
    source="Kimi k1.5 2025, arXiv 2501.12599, section 2.3.2",
    advantage=group_mean,
    objective=mirror_descent,
    correction=uncorrected,
    aggregation=sequence,
    admission=minimum,
    epochs=2,
    reset_optimizer=True,
    published={"temperature": 1.0},
)

OTB = Row(
    name="otb",
    summary="A baseline per token, weighed by a proxy of the gradient's size: least variance with few samples.",
    source="2026, arXiv 2602.07078",
    advantage=optimal_token,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    published={"temperature": 1.0},
)

TRM = Row(
    name="trm",
    summary="Importance ratio to the sampler; answers with any token outside the trust region leave whole.",
    source="2025, arXiv 2512.23075",
    advantage=leave_one_out,
    objective=importance,
    correction=trm,
    aggregation=constant,
    admission=minimum,
    anchor="mu",
    published={"temperature": 1.0},
)

DVP = Row(
    name="dvp",
    summary="Sampler and learner leave out the same tail of the vocabulary, where their log-probs disagree.",
    source="2025, arXiv 2512.23087",
    advantage=leave_one_out,
    objective=ppo_clip,
    correction=uncorrected,
    aggregation=constant,
    admission=minimum,
    prune=2.2603294069810542e-06,  # e^-13
    published={"temperature": 1.0},
)

SCALERL = Row(
    name="scalerl",
    summary="CISPO to the sampler, prompt mean, batch-normalised, float32 head, solved tasks retire, lag 8.",
    source="Khatri et al. 2025, arXiv 2510.13786",
    advantage=batch_norm,
    objective=cispo,
    correction=uncorrected,
    aggregation=prompt,
    admission=varied,
    anchor="mu",
    float32_head=True,
    plan=Plan(retire=0.9, lag=8, interrupt=Interrupt(low=10_000, high=12_000)),
    published={"group": 16, "temperature": 1.0},
)

OLMORL = Row(
    name="olmorl",
    summary="Dr. GRPO's advantage, clip-higher, token mean, truncated importance sampling, active sampling, lag 8.",
    source="Olmo 3 2025, arXiv 2512.13961",
    advantage=group_mean,
    objective=ppo_clip.using(low=0.2, high=0.272),
    correction=tis,
    aggregation=token,
    admission=varied,
    plan=Plan(refill="active", lag=8),
    published={"group": 8, "temperature": 1.0},
)

SFT = Row(
    name="sft",
    summary="Every sample is an example: cross-entropy over all tokens, as `quintain sft` does without sampling.",
    source="Ouyang et al. 2022, arXiv 2203.02155, section 3.5",
    advantage=ones,
    objective=policy_gradient,
    correction=uncorrected,
    aggregation=token,
    admission=minimum.using(members=1),
)

_ROWS = (
    REINFORCE,
    GRPO,
    RLOO,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    DR_GRPO,
    DAPO,
    CISPO,
    GSPO,
    DPPO,
    MAXRL,
    KIMI,
    OTB,
    TRM,
    DVP,
    SCALERL,
    OLMORL,
    SFT,
)
PRESETS = {row.name: row for row in _ROWS}
