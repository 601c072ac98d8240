"""The algorithms of this package, with the defaults of their papers.

All learn in one update per batch unless stated: then theta is prox, every ratio to prox is 1, and
algorithms that differ in their trust region alone take the same step. ``published`` has the number
of updates of a paper.
"""

from __future__ import annotations

from quintain import KL, Algorithm, SamplingPlan, ThinkingBudget
from quintain.learning import advantages, aggregation, corrections, group_filter, objectives

from .advantages import (
    batch_norm,
    length_reward,
    maxrl,
    optimal_token,
    reinforce_pp,
    reinforce_pp_baseline,
)
from .corrections import trm
from .objectives import cispo, dppo_tv, gspo, mirror_descent

REINFORCE_PP = Algorithm(
    name="reinforce_pp",
    summary=(
        "Return with a KL penalty per token, whitened over all tokens of the batch; PPO clip, no "
        "groups."
    ),
    source="Hu et al. 2025, arXiv 2501.03262",
    advantage=reinforce_pp,
    objective=objectives.ppo_clip,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum.configure(samples=1),
    kl=KL(where="reward", estimator="k1", coefficient=0.01),
    published={"group": 1, "temperature": 1.0},
)

REINFORCE_PP_BASELINE = Algorithm(
    name="reinforce_pp_baseline",
    summary=(
        "Reward less the group's mean, whitened over the batch; PPO clip, k2 to the reference in "
        "the loss."
    ),
    source="Hu et al. 2025, arXiv 2501.03262, section 3.2",
    advantage=reinforce_pp_baseline,
    objective=objectives.ppo_clip,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum,
    kl=KL(where="loss", estimator="k2", coefficient=0.01),
    published={"group": 8, "temperature": 1.0},
)

CISPO = Algorithm(
    name="cispo",
    summary=(
        "A capped weight without gradient drops no token; dynamic sampling and overlong punishment "
        "of DAPO."
    ),
    source="MiniMax 2025, arXiv 2506.13585",
    advantage=advantages.group_norm,
    objective=cispo,
    correction=corrections.uncorrected,
    # equation 4 is `prompt`; it cites DAPO's loss, whose authors average as here
    aggregation=aggregation.token,
    group_filter=group_filter.varied,
    # the paper takes dynamic sampling and length penalty from DAPO, without numbers: DAPO's
    overlong=0.2,
    plan=SamplingPlan(resample="dynamic"),
    published={"group": 16, "minibatches": 16, "temperature": 1.0},
)

GSPO = Algorithm(
    name="gspo",
    summary="One ratio per answer, the geometric mean of its tokens', clipped at 3e-4 and 4e-4.",
    source="Zheng et al. 2025, arXiv 2507.18071",
    advantage=advantages.group_norm,
    objective=gspo,
    correction=corrections.uncorrected,
    aggregation=aggregation.sequence,
    group_filter=group_filter.minimum,
    published={"minibatches": 4, "temperature": 1.0},
)

DPPO = Algorithm(
    name="dppo",
    summary=(
        "Drops tokens that moved too far from the sampler in probability (binary TV 0.15), not in "
        "ratio."
    ),
    source="2026, arXiv 2602.04879",
    # neither spread nor length divides: the recipe of the authors (in verl)
    advantage=advantages.group_mean,
    objective=dppo_tv,
    correction=corrections.uncorrected,
    aggregation=aggregation.constant,
    group_filter=group_filter.minimum,
    ratio_to="mu",
    published={"temperature": 1.0},
)

MAXRL = Algorithm(
    name="maxrl",
    summary=(
        "Advantage (R - mean) / mean: climbs a truncation of the log success rate; hard tasks "
        "weigh more."
    ),
    source="2026, arXiv 2602.02710",
    advantage=maxrl,
    objective=objectives.policy_gradient,
    correction=corrections.uncorrected,
    aggregation=aggregation.constant,
    group_filter=group_filter.minimum,
    published={"temperature": 1.0},
)

KIMI = Algorithm(
    name="kimi",
    summary=(
        "Mirror descent by a squared loss on the log-ratio of whole answers, a length reward after "
        "50 batches."
    ),
    source="Kimi k1.5 2025, arXiv 2501.12599, sections 2.3.2 and 2.3.3",
    advantage=length_reward,
    objective=mirror_descent,
    correction=corrections.uncorrected,
    aggregation=aggregation.sequence,
    group_filter=group_filter.minimum,
    epochs=2,
    reset_optimizer=True,
    published={"temperature": 1.0},
)

OTB = Algorithm(
    name="otb",
    summary=(
        "A baseline per token, weighed by a proxy of the gradient's size; noisier than a group "
        "mean in our study."
    ),
    source="2026, arXiv 2602.07078",
    advantage=optimal_token,
    objective=objectives.policy_gradient,
    correction=corrections.uncorrected,
    aggregation=aggregation.constant,
    group_filter=group_filter.minimum,
    published={"temperature": 1.0},
)

TRM = Algorithm(
    name="trm",
    summary=(
        "Importance ratio to the sampler; answers with any token outside the trust region leave "
        "whole."
    ),
    source="2025, arXiv 2512.23075",
    advantage=advantages.leave_one_out,
    objective=objectives.importance,
    correction=trm,
    aggregation=aggregation.constant,
    group_filter=group_filter.minimum,
    ratio_to="mu",
    published={"temperature": 1.0},
)

DVP = Algorithm(
    name="dvp",
    summary=(
        "Sampler and learner leave out the same tail of the vocabulary, where their log-probs "
        "disagree."
    ),
    source="2025, arXiv 2512.23087",
    advantage=advantages.leave_one_out,
    objective=objectives.ppo_clip,
    correction=corrections.uncorrected,
    aggregation=aggregation.constant,
    group_filter=group_filter.minimum,
    prune=2.2603294069810542e-06,  # e^-13
    published={"temperature": 1.0},
)

SCALERL = Algorithm(
    name="scalerl",
    summary=(
        "CISPO to the sampler, prompt mean, batch-normalised, float32 head, solved tasks are "
        "dropped, staleness 8."
    ),
    source="Khatri et al. 2025, arXiv 2510.13786",
    advantage=batch_norm,
    objective=cispo,
    correction=corrections.uncorrected,
    aggregation=aggregation.prompt,
    group_filter=group_filter.varied,
    ratio_to="mu",
    float32_head=True,
    plan=SamplingPlan(
        drop_solved=0.9,
        staleness=8,
        thinking_budget=ThinkingBudget(min_tokens=10_000, max_tokens=12_000),
    ),
    published={"group": 16, "temperature": 1.0},
)

OLMORL = Algorithm(
    name="olmorl",
    summary="Dr. GRPO's advantage, clip-higher, token mean, truncated importance sampling, active "
    "sampling, "
    "staleness 8.",
    source="Olmo 3 2025, arXiv 2512.13961",
    advantage=advantages.group_mean,
    objective=objectives.ppo_clip.configure(low=0.2, high=0.272),
    correction=corrections.tis,
    aggregation=aggregation.token,
    group_filter=group_filter.varied,
    plan=SamplingPlan(resample="active", staleness=8),
    published={"group": 8, "temperature": 1.0},
)
