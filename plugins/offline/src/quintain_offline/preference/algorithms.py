"""The algorithms. All of them learn from the rollouts of an ordinary run; nothing is stored between
steps.
"""

from __future__ import annotations

from dataclasses import replace

from quintain import Algorithm
from quintain.learning import advantages, aggregation, corrections, group_filter, objectives

from .desirability import desirable, kto
from .imitation import ones, over_winners, winners
from .pairs import dpo, dpo_norm, simpo

SFT = Algorithm(
    name="sft",
    summary=(
        "Every sample is an example: cross-entropy over all tokens, as `quintain sft` does without "
        "sampling."
    ),
    source="Ouyang et al. 2022, arXiv 2203.02155, section 3.5",
    advantage=ones,
    objective=objectives.policy_gradient,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum.configure(samples=1),
)

RFT = Algorithm(
    name="rft",
    summary="Imitate the answers that succeeded: expert iteration, rejection sampling, best-of-n.",
    source="Yuan et al. 2023, arXiv 2308.01825",
    advantage=winners,
    objective=objectives.policy_gradient,
    correction=corrections.uncorrected,
    aggregation=over_winners,
    group_filter=group_filter.minimum.configure(samples=1),
    published={"group": 100, "temperature": 0.7},
)

# The order of rewards is all that pairs need, and a group without pairs has advantages of exactly
# 0, hence no pass. `prompt` lets each group weigh 1 / (groups of the batch), those without pairs
# included. `sequence` would let it weigh (its samples) / (samples): the same where no sample
# failed.
DPO = Algorithm(
    name="dpo",
    summary=(
        "Pairs ranked by reward in each group, logistic loss on summed log-ratios to the "
        "reference, beta 0.1."
    ),
    source="Rafailov et al. 2023, arXiv 2305.18290, equation 7",
    advantage=advantages.group_mean,
    objective=dpo,
    correction=corrections.uncorrected,
    aggregation=aggregation.prompt,
    group_filter=group_filter.minimum,
    published={"group": 2},
)

DPO_NORM = replace(
    DPO,
    name="dpo_norm",
    summary="DPO with log-ratios averaged over the tokens of each answer, beta 5.",
    source="Lambert et al. 2024 (Tulu 3), arXiv 2411.15124, section 5.1",
    objective=dpo_norm,
    published={},
)

SIMPO = replace(
    DPO,
    name="simpo",
    summary="Pairs ranked by reward in each group, mean log-probs with a target margin, no reference.",
    source="Meng et al. 2024, arXiv 2405.14734, equation 6",
    objective=simpo,
    published={"group": 5, "temperature": 0.8},
)

KTO = Algorithm(
    name="kto",
    summary=(
        "Each sample is desirable or not, without pairs; its value saturates around the KL to the "
        "reference."
    ),
    source="Ethayarajh et al. 2024, arXiv 2402.01306, equation 8",
    advantage=desirable,
    objective=kto,
    correction=corrections.uncorrected,
    aggregation=aggregation.prompt,
    group_filter=group_filter.minimum.configure(samples=1),
)
