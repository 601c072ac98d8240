"""The algorithms of this package. ``advantage = { reward = 1.0 }`` mixes in the reward of the task."""

from __future__ import annotations

from dataclasses import replace

from quintain import Algorithm
from quintain.learning import aggregation, corrections, group_filter, objectives

from .advantages import reverse_kl, teacher_tokens
from .objectives import divergence

OPD = Algorithm(
    name="opd",
    summary=(
        "On-policy distillation: a teacher's log-prob less the policy's own as the advantage of "
        "each token."
    ),
    source=(
        "Lu and Thinking Machines 2025, On-Policy Distillation; Qwen3 2025, arXiv 2505.09388, "
        "section 4.5"
    ),
    advantage=reverse_kl,
    objective=objectives.importance,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum.configure(samples=1),
    services={"teacher": "teacher"},
    published={"group": 4, "temperature": 1.0},
)

GKD = Algorithm(
    name="gkd",
    summary=(
        "Divergence from a teacher's next-token distribution on the policy's own samples, "
        "Jensen-Shannon by default."
    ),
    source="Agarwal et al. 2023, arXiv 2306.13649, equation 3",
    advantage=teacher_tokens,
    objective=divergence,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum.configure(samples=1),
    services={"teacher": "teacher"},
    published={"group": 1, "temperature": 1.0},
)

OPSD = replace(
    OPD,
    name="opsd",
    summary=(
        "Self-distillation: the teacher is the policy with the answer, a solution or feedback in "
        "its prompt."
    ),
    source="Zhao et al. 2026, arXiv 2601.18734; Hübotter et al. 2026, arXiv 2601.20802",
    services={"teacher": "self-teacher"},
    published={"temperature": 1.0},
)
