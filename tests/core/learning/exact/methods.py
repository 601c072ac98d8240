"""Every row of core and of `quintain-algorithms`, and every choice that no row makes, beside its
closed form.

The numbers on the right are those of the papers and of issue trackers, written down again: nothing
is read from the package.
"""

from __future__ import annotations

import math

from quintain.interfaces.algorithm import KL, Algorithm

from ..algorithms import INSTALLED
from . import closed_form as cf
from .closed_form import Method, Penalty

Pair = tuple[Algorithm, Method]
BASELINE = 0.37
"""Of the moving average: what earlier batches left; and what the greedy answer earns."""
STATES = {"ema": {"average": 0.1 * BASELINE, "weight": 0.1}}
"""Of stateful advantages, by name; others begin."""

DR_GRPO = Method(advantage=cf.in_groups(cf.less_mean), slope=cf.clip(), share=cf.by_constant)
GRPO = Method(
    advantage=cf.in_groups(cf.standardised),
    slope=cf.clip(),
    share=cf.by_sequence,
    kl=Penalty(where="loss", estimate="k3", coefficient=0.04),
)
RLOO = Method(advantage=cf.in_groups(cf.less_others), slope=cf.likelihood, share=cf.by_constant)

CORE: dict[str, Method] = {
    "reinforce": RLOO.replace(advantage=cf.less_batch_mean),
    "grpo": GRPO,
    "rloo": RLOO,
    "reinforce_pp": Method(
        advantage=cf.plus_plus,
        slope=cf.clip(),
        share=cf.by_token,
        kl=Penalty(where="reward", estimate="k1", coefficient=0.01),
    ),
    "reinforce_pp_baseline": Method(
        advantage=cf.plus_plus_baseline,
        slope=cf.clip(),
        share=cf.by_token,
        kl=Penalty(where="loss", estimate="k2", coefficient=0.01),
    ),
    "dr_grpo": DR_GRPO,
    "dapo": GRPO.replace(slope=cf.clip(0.2, 0.28), share=cf.by_token, kl=None, overlong=0.2),
    "cispo": GRPO.replace(slope=cf.capped(5.0), share=cf.by_token, kl=None, overlong=0.2),
    "gspo": GRPO.replace(slope=cf.geometric_clip(3e-4, 4e-4), whole=True, kl=None),
    "dppo": DR_GRPO.replace(slope=cf.divergence_mask("tv", 0.15)),
    "maxrl": RLOO.replace(advantage=cf.in_groups(cf.excess_over_success)),
    "kimi": DR_GRPO.replace(slope=cf.squared(0.1), share=cf.by_sequence, whole=True),
    "otb": RLOO.replace(advantage=cf.optimal_token),
    "trm": RLOO.replace(slope=cf.surrogate("mu"), weigh=cf.whole_sample("k3", "max", 0.05)),
    "dvp": RLOO.replace(slope=cf.clip(), prune=math.exp(-13)),
    "scalerl": Method(
        advantage=cf.over_batch_spread(), slope=cf.capped(5.0, ratio_to="mu"), share=cf.by_prompt
    ),
    "olmorl": DR_GRPO.replace(
        slope=cf.clip(0.2, 0.272), share=cf.by_token, weigh=cf.truncated(2.0)
    ),
    "sft": RLOO.replace(advantage=cf.one, share=cf.by_token),
}


def _kl(where: str, estimate: str, score: bool = False) -> Pair:
    """rloo with a KL term."""
    kl = KL(where=where, estimator=estimate, coefficient=0.3, score_factor=score)  # type: ignore[arg-type]
    penalty = Penalty(where=where, estimate=estimate, coefficient=0.3, score=score)  # type: ignore[arg-type]
    return INSTALLED["rloo"].replace(kl=kl), RLOO.replace(kl=penalty)


def _masked(estimate: str, over: str, limit: float) -> Pair:
    algorithm = INSTALLED["dr_grpo"].replace(
        correction={"use": "sequence_mask", "estimate": estimate, "over": over, "limit": limit}
    )
    return algorithm, DR_GRPO.replace(weigh=cf.whole_sample(estimate, over, limit))


def _objective(
    slope: cf.Slope, whole: bool = False, ratio_to: str = "prox", **objective: object
) -> Pair:
    """dr_grpo with another objective."""
    # its term is a sum over tokens: each sample weighs the same
    once = objective.get("use") == "sequence_clip"
    algorithm = INSTALLED["dr_grpo"].replace(
        objective=objective,
        ratio_to=ratio_to,
        aggregation="sequence" if once else INSTALLED["dr_grpo"].aggregation,
    )
    return algorithm, DR_GRPO.replace(
        slope=slope, whole=whole, share=cf.by_sequence if once else DR_GRPO.share
    )


def _advantage(name: str, advantage: cf.Advantage, **args: object) -> Pair:
    """rloo with another advantage."""
    return INSTALLED["rloo"].replace(advantage={"use": name, **args}), RLOO.replace(
        advantage=advantage
    )


def _corrected(weigh: cf.Weigh, **correction: object) -> Pair:
    return INSTALLED["dr_grpo"].replace(correction=correction), DR_GRPO.replace(weigh=weigh)


LIMITS = {"sum": {"k1": 0.4, "k2": 0.2, "k3": 0.2}, "mean": {"k1": 0.25, "k2": 0.1, "k3": 0.1}}
LIMITS["max"] = {"k1": 0.4, "k2": 0.1, "k3": 0.1}

CHOICES: dict[str, Pair] = {
    "raw": _advantage("raw", cf.less_constant(0.0)),
    "ema": _advantage("ema", cf.less_constant(BASELINE)),
    "greedy": _advantage("greedy", cf.less_constant(BASELINE)),
    "length_reward": _advantage("length_reward", cf.brief(0.7), weight=0.7, start=0),
    "group_mean": _advantage("group_mean", cf.in_groups(cf.less_mean)),
    "process_norm": (
        INSTALLED["grpo"].replace(advantage="process_norm"),
        GRPO.replace(advantage=cf.process),
    ),
    "turn_level": _advantage("turn_level", cf.turn_level(1.0, True)),
    "turn_level-mean": _advantage(
        "turn_level", cf.turn_level(0.7, False), gamma=0.7, baseline="mean"
    ),
    "maxrl-success": _advantage("maxrl", cf.in_groups(cf.over_success), form="success"),
    "batch_norm": _advantage("batch_norm", cf.over_batch_spread()),
    "batch_norm-environment": _advantage(
        "batch_norm", cf.over_batch_spread(True), over="environment"
    ),
    "token": (
        INSTALLED["dr_grpo"].replace(aggregation="token"),
        DR_GRPO.replace(share=cf.by_token),
    ),
    "sequence": (
        INSTALLED["dr_grpo"].replace(aggregation="sequence"),
        DR_GRPO.replace(share=cf.by_sequence),
    ),
    "prompt": (
        INSTALLED["dr_grpo"].replace(aggregation="prompt"),
        DR_GRPO.replace(share=cf.by_prompt),
    ),
    "importance": _objective(cf.surrogate("prox"), use="importance"),
    "importance-mu": _objective(cf.surrogate("mu"), ratio_to="mu", use="importance"),
    "clip-mu": _objective(cf.clip(ratio_to="mu"), ratio_to="mu", use="ppo_clip"),
    "dual": _objective(cf.clip(dual=1.4), use="ppo_clip", dual=1.4),
    "sequence_clip": _objective(
        cf.product_clip(0.2, 0.3), whole=True, use="sequence_clip", high=0.3
    ),
    "sequence_clip-dual": _objective(
        cf.product_clip(0.2, 0.2, dual=1.3), whole=True, use="sequence_clip", dual=1.3
    ),
    "gspo-wide": _objective(cf.geometric_clip(0.1, 0.2), whole=True, use="gspo", low=0.1, high=0.2),
    "gspo_token": (
        INSTALLED["grpo"].replace(
            advantage="process_norm",
            objective={"use": "gspo_token", "low": 0.1, "high": 0.2},
            kl={"coefficient": 0},
        ),
        GRPO.replace(advantage=cf.process, slope=cf.geometric_clip_of_tokens(0.1, 0.2), kl=None),
    ),
    "cispo-cap": (
        INSTALLED["cispo"].replace(objective={"cap": 1.1}),
        CORE["cispo"].replace(slope=cf.capped(1.1)),
    ),
    "scalerl-cap": (
        INSTALLED["scalerl"].replace(objective={"cap": 1.1}),
        CORE["scalerl"].replace(slope=cf.capped(1.1, ratio_to="mu")),
    ),
    "olmorl-cap": (
        INSTALLED["olmorl"].replace(correction={"cap": 1.2}),
        CORE["olmorl"].replace(weigh=cf.truncated(1.2)),
    ),
    "dppo-cap": (
        INSTALLED["dppo"].replace(objective={"delta": 0.1, "cap": 1.1}),
        CORE["dppo"].replace(slope=cf.divergence_mask("tv", 0.1, cap=1.1)),
    ),
    "dppo_kl": _objective(cf.divergence_mask("kl", 0.05), ratio_to="mu", use="dppo_kl"),
    "dppo_kl-prox": _objective(
        cf.divergence_mask("kl", 0.02, ratio_to="prox"), use="dppo_kl", delta=0.02
    ),
    "dppo_top-1": _objective(
        cf.divergence_mask("top", 0.15, top=1, ratio_to="prox"), use="dppo_top", delta=0.15, top=1
    ),
    "dppo_top-2": _objective(
        cf.divergence_mask("top", 0.1, top=2, ratio_to="prox"), use="dppo_top", delta=0.1, top=2
    ),
    "dppo_top-all": _objective(
        cf.divergence_mask("top", 0.15, top=20, ratio_to="prox"), use="dppo_top", delta=0.15, top=20
    ),
    "kimi-tau": (
        INSTALLED["kimi"].replace(objective={"tau": 0.6}),
        CORE["kimi"].replace(slope=cf.squared(0.6)),
    ),
    "tis": _corrected(cf.truncated(1.2), use="tis", cap=1.2),
    "tis_sequence": _corrected(cf.truncated_product(1.1), use="tis_sequence", cap=1.1),
    "mis": _corrected(cf.banded_product(0.8, 1.5), use="mis", low=0.8, high=1.5),
    "icepop": _corrected(cf.banded(0.7, 1.5), use="icepop", low=0.7, high=1.5),
    "icepop-default": _corrected(cf.banded(0.5, 5.0), use="icepop"),
    "gspo+tis_sequence": (
        INSTALLED["gspo"].replace(
            objective={"low": 0.1, "high": 0.2}, correction={"use": "tis_sequence", "cap": 1.1}
        ),
        CORE["gspo"].replace(slope=cf.geometric_clip(0.1, 0.2), weigh=cf.truncated_product(1.1)),
    ),
    "grpo+tis": (
        INSTALLED["grpo"].replace(correction="tis", aggregation="token"),
        GRPO.replace(weigh=cf.truncated(2.0), share=cf.by_token),
    ),
    **{
        f"sequence_mask-{estimate}-{over}": _masked(estimate, over, limit)
        for over, held in LIMITS.items()
        for estimate, limit in held.items()
    },
    "trm-k2": (
        INSTALLED["trm"].replace(correction={"estimate": "k2"}),
        CORE["trm"].replace(weigh=cf.whole_sample("k2", "max", 0.05)),
    ),
    "trm-mean": (
        INSTALLED["trm"].replace(correction={"over": "mean"}),
        CORE["trm"].replace(weigh=cf.whole_sample("k3", "mean", 0.05)),
    ),
    "dvp-coarse": (INSTALLED["dvp"].replace(prune=0.3), CORE["dvp"].replace(prune=0.3)),
    "dvp+kl": (
        INSTALLED["dvp"].replace(prune=0.3, kl=KL(where="loss", estimator="k2", coefficient=0.3)),
        CORE["dvp"].replace(prune=0.3, kl=Penalty(where="loss", estimate="k2", coefficient=0.3)),
    ),
    "dvp+otb": (
        INSTALLED["dvp"].replace(prune=0.3, advantage="optimal_token"),
        CORE["dvp"].replace(prune=0.3, advantage=cf.optimal_token),
    ),
    "kl-k2": _kl("loss", "k2"),
    "kl-k3": _kl("loss", "k3"),
    "kl-k1-score": _kl("loss", "k1", True),
    "kl-k2-score": _kl("loss", "k2", True),
    "kl-k3-score": _kl("loss", "k3", True),
    "kl-k1-reward": _kl("reward", "k1"),
    "kl-k2-reward": _kl("reward", "k2"),
    "kl-k3-reward": _kl("reward", "k3"),
    "mask_truncated": (
        INSTALLED["grpo"].replace(mask_truncated=True),
        GRPO.replace(mask_truncated=True),
    ),
    "overlong": (INSTALLED["rloo"].replace(overlong=0.5), RLOO.replace(overlong=0.5)),
}

PAIRS: dict[str, Pair] = {
    name: (INSTALLED[name], method) for name, method in CORE.items()
} | CHOICES
