"""What is compared: made-up rollouts, and for each case our algorithm and TRL's settings, every
value explicit.

Plain data, so that both sides read the same: needs neither torch nor Quintain.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Trainer = Literal["grpo", "rloo", "dpo", "cpo", "sft"]

VOCABULARY, PAD, EOS = 24, 22, 23
GROUP_SIZE = 4
LONGEST = 10
"""Configured maximum of new tokens."""
TEMPERATURE = 0.8
"""Of sampling. Supervised and preference losses are at 1, as TRL's are."""
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
"""Fields of the Qwen3 configuration."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One made-up rollout.

    Attributes:
        prompt, ids: tokens.
        trained: which of *ids* the policy sampled; the others are observations.
        reward: of the whole reply.
        group: replies to the same prompt share it.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    reward: float
    group: int

    @property
    def truncated(self) -> bool:
        return self.ids[-1] != EOS


@dataclass(frozen=True, kw_only=True)
class Case:
    """One algorithm on both sides.

    Attributes:
        name: for the table.
        algorithm: our algorithm.
        changes: arguments of `Algorithm.replace`.
        trainer: TRL's.
        settings: of its configuration.
        says: the table's words for both sides, ours and TRL's.
        note: what TRL does by default, where that is another thing.
        moved: theta has left prox, as in a second epoch; otherwise they are one.
        corrected: the correction for the sampler is on (TRL ties it to vLLM).
        observations: some tokens of some replies are observations.
        winners: supervised on the replies of reward 1 only.
        supervised: ours is `Learner.supervised_step`.
        compares: what must agree.
        factor: TRL's advantages are ours times this.
        active: our metrics that must not be 0, so that the branch in question was taken.
        twin: another case that TRL computes in the same way.
    """

    name: str
    algorithm: str
    trainer: Trainer
    changes: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    says: tuple[str, str]
    note: str = ""
    moved: bool = True
    corrected: bool = False
    observations: bool = True
    winners: bool = False
    supervised: bool = False
    compares: frozenset[str] = frozenset({"advantage", "loss", "gradient"})
    factor: float = 1.0
    active: tuple[str, ...] = ()
    twin: str = ""

    @property
    def overlong(self) -> int:
        """Tokens over which TRL's reward function punishes length."""
        share: float = self.changes.get("overlong", 0.0)
        return round(share * LONGEST)

    @property
    def temperature(self) -> float:
        return TEMPERATURE if self.trainer in ("grpo", "rloo") else 1.0


def replies(*, observations: bool) -> list[Reply]:
    """Four groups of four: ragged prompts and replies, two replies cut off, one group of equal
    rewards.

    Rewards are multiples of 1/4, hence exact in float32, which TRL keeps them in.
    """
    rng = random.Random(3)
    lengths = ((3, 10, 6, 9), (1, 5, 8, 4), (10, 2, 7, 5), (6, 6, 3, 8))
    rewards = (
        (1.0, 0.0, 0.5, 0.0),
        (0.0, 1.0, 1.0, 0.0),
        (1.0, 0.0, 0.25, 0.0),
        (1.0, 1.0, 1.0, 1.0),
    )
    seen = {(1, 2): (3, 4), (2, 2): (2,)} if observations else {}
    built = []
    for group, sizes in enumerate(lengths):
        prompt = tuple(rng.randrange(PAD) for _ in range(3 + group % 3))
        for sample, size in enumerate(sizes):
            ids = [rng.randrange(PAD) for _ in range(size)]
            if size < LONGEST:
                ids[-1] = EOS
            trained = tuple(place not in seen.get((group, sample), ()) for place in range(size))
            reward = rewards[group][sample]
            built.append(
                Reply(prompt=prompt, ids=tuple(ids), trained=trained, reward=reward, group=group)
            )
    return built


def pairs() -> list[tuple[Reply, Reply]]:
    """Return the best and the worst reply of each group that has a best one."""
    sampled = replies(observations=False)
    groups = [[r for r in sampled if r.group == g] for g in range(sampled[-1].group + 1)]
    extremes = [(max(g, key=lambda r: r.reward), min(g, key=lambda r: r.reward)) for g in groups]
    return [(best, worst) for best, worst in extremes if best.reward > worst.reward]


def _batch_scale(sampled: Sequence[Reply], epsilon: float = 1e-4) -> float:
    """TRL's batch-scaled advantages over those of `batch_norm`: the spread of the group-centred
    rewards, ddof 0, over that of the rewards themselves, ddof 1.
    """
    rewards = [r.reward for r in sampled]
    means = {
        g: statistics.fmean(r.reward for r in sampled if r.group == g)
        for g in {r.group for r in sampled}
    }
    centred = [r.reward - means[r.group] for r in sampled]
    return (statistics.pstdev(centred) + epsilon) / (statistics.stdev(rewards) + epsilon)


GROUP = {"ddof": 1, "epsilon": 1e-4}
"""TRL's spread of a group."""
NO_KL = {"where": "none", "coefficient": 0.0}
DAPO = {
    "loss_type": "dapo",
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "beta": 0.0,
    "scale_rewards": "group",
}
CISPO = {"loss_type": "cispo", "epsilon_high": 1.3, "beta": 0.0, "scale_rewards": "group"}
DR_GRPO = {"loss_type": "dr_grpo", "epsilon": 0.2, "beta": 0.0, "scale_rewards": "none"}
"""TRL's settings of these algorithms, without a KL term."""
SEQUENCE_RATIO = {
    "importance_sampling_level": "sequence",
    "epsilon": 0.01,
    "epsilon_high": 0.015,
    "beta": 0.0,
    "scale_rewards": "group",
}
"""TRL's settings of GSPO besides its kind of loss."""
PLAIN_KL = {"beta": 0.04, "use_bias_correction_kl": False}


def _sampler(mode: str, high: float | None, low: float | None = None) -> dict[str, Any]:
    return {
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": high,
        "vllm_importance_sampling_clip_min": low,
    }


CLIP = ("clip.low", "clip.high")
GRADIENT = frozenset({"advantage", "gradient"})
BLIND = frozenset({"loss", "gradient"})

CASES: tuple[Case, ...] = (
    Case(
        name="GRPO, k3 in the loss",
        algorithm="grpo",
        changes={"advantage": GROUP},
        trainer="grpo",
        settings={"loss_type": "grpo", "epsilon": 0.2, "scale_rewards": "group", **PLAIN_KL},
        says=("grpo, ddof 1", "loss_type grpo, beta 0.04"),
        note="beta 0; with beta > 0 the KL term is multiplied by the ratio (next row)",
        active=(*CLIP, "kl.ref.k3"),
    ),
    Case(
        name="GRPO, k3 times the score factor, theta = prox",
        algorithm="grpo",
        changes={"advantage": GROUP, "kl": {"score_factor": True}},
        trainer="grpo",
        settings={"loss_type": "grpo", "epsilon": 0.2, "scale_rewards": "group", "beta": 0.04},
        says=("kl.score_factor", "use_bias_correction_kl"),
        note=(
            "multiplies by theta / prox, not by exp(log theta - stopgrad): another weight once "
            "theta has moved"
        ),
        moved=False,
        active=("kl.ref.k3",),
    ),
    Case(
        name="GRPO without KL, two-sided clip",
        algorithm="grpo",
        changes={"advantage": GROUP, "kl": NO_KL, "objective": {"dual": 1.5}},
        trainer="grpo",
        settings={
            "loss_type": "grpo",
            "epsilon": 0.2,
            "delta": 1.5,
            "beta": 0.0,
            "scale_rewards": "group",
        },
        says=("objective.dual", "delta"),
        note="off; a delta below 1 + epsilon_high also caps rewarded tokens, which we refuse",
        active=(*CLIP, "objective.clip_dual"),
    ),
    Case(
        name="group mean, spread of the batch",
        algorithm="grpo",
        changes={"advantage": {"use": "batch_norm", "epsilon": 1e-4}, "kl": NO_KL},
        trainer="grpo",
        settings={"loss_type": "grpo", "epsilon": 0.2, "beta": 0.0, "scale_rewards": "batch"},
        says=("batch_norm", "scale_rewards batch"),
        note="the spread of the raw rewards (ddof 1), ours that of the centred ones (ddof 0): one "
        "factor per batch, "
        "divided out here",
        factor=_batch_scale(replies(observations=True)),
        active=CLIP,
    ),
    Case(
        name="Dr. GRPO",
        algorithm="dr_grpo",
        trainer="grpo",
        settings=DR_GRPO,
        says=("dr_grpo", "loss_type dr_grpo, scale_rewards none"),
        note="scale_rewards stays group unless it is set",
        active=CLIP,
    ),
    Case(
        name="DAPO, soft overlong punishment",
        algorithm="dapo",
        changes={"advantage": GROUP, "overlong": 0.2},
        trainer="grpo",
        settings=DAPO,
        says=("dapo, ddof 1", "loss_type dapo, get_soft_overlong_punishment"),
        note=(
            "epsilon_high = epsilon; no dynamic sampling; its length counts observations, ours the "
            "longest turn"
        ),
        active=CLIP,
    ),
    Case(
        name="DAPO, truncated replies masked",
        algorithm="dapo",
        changes={"advantage": GROUP, "overlong": 0.0, "mask_truncated": True},
        trainer="grpo",
        settings={**DAPO, "mask_truncated_completions": True},
        says=("mask_truncated", "mask_truncated_completions"),
        note="off; with a sequence mean masked replies still count in its denominator, ours do not",
        active=CLIP,
    ),
    Case(
        name="CISPO",
        algorithm="cispo",
        changes={"advantage": GROUP, "objective": {"cap": 1.3}, "overlong": 0.0},
        trainer="grpo",
        settings=CISPO,
        says=("cispo, cap 1.3", "loss_type cispo, epsilon_high 1.3"),
        note="epsilon_high = epsilon = 0.2, read as the cap itself: nearly every token is capped",
        active=("clip.high",),
    ),
    Case(
        name="CISPO, ratio to the sampler",
        algorithm="cispo",
        changes={"advantage": GROUP, "objective": {"cap": 1.3}, "ratio_to": "mu", "overlong": 0.0},
        trainer="grpo",
        settings=CISPO,
        says=("ratio_to mu", "old_per_token_logps = the sampler's"),
        note="the sampler's log-probs enter as a correction only (AsyncGRPO has this ratio_to)",
        active=("clip.high",),
    ),
    Case(
        name="GSPO",
        algorithm="gspo",
        changes={"advantage": GROUP, "objective": {"low": 0.01, "high": 0.015}},
        trainer="grpo",
        settings={"loss_type": "grpo", **SEQUENCE_RATIO},
        says=("gspo", "importance_sampling_level sequence, loss_type grpo"),
        note="epsilon 0.2, at which nothing is ever clipped; loss_type dapo, which weighs by length",
        active=CLIP,
    ),
    Case(
        name="GSPO, token form",
        algorithm="gspo",
        changes={
            "advantage": GROUP,
            "objective": {"use": "gspo_token", "low": 0.01, "high": 0.015},
        },
        trainer="grpo",
        settings={"loss_type": "grpo", **SEQUENCE_RATIO},
        says=("objective gspo_token", "as above"),
        note="has no token form; the two agree while a reply's tokens share an advantage",
        active=CLIP,
        twin="GSPO",
    ),
    Case(
        name="LUSPO",
        algorithm="gspo",
        changes={
            "advantage": GROUP,
            "objective": {"low": 0.01, "high": 0.015},
            "aggregation": {"use": "constant", "length": 1},
        },
        trainer="grpo",
        settings={"loss_type": "luspo", **SEQUENCE_RATIO},
        says=("gspo, constant aggregation of length 1", "loss_type luspo"),
        active=CLIP,
    ),
    Case(
        name="OlmoRL (truncated importance sampling)",
        algorithm="olmorl",
        changes={"correction": {"cap": 1.2}},
        trainer="grpo",
        settings={
            "loss_type": "dapo",
            "epsilon": 0.2,
            "epsilon_high": 0.272,
            "beta": 0.0,
            "scale_rewards": "none",
            **_sampler("token_truncate", 1.2),
        },
        says=("olmorl, tis 1.2", "token_truncate, clip_max 1.2"),
        note="sequence_mask, clip_max 3",
        corrected=True,
        active=CLIP,
    ),
    Case(
        name="IcePop",
        algorithm="grpo",
        changes={
            "advantage": GROUP,
            "aggregation": "token",
            "correction": {"use": "icepop", "low": 0.8, "high": 1.25},
        },
        trainer="grpo",
        settings={
            "loss_type": "dapo",
            "epsilon": 0.2,
            "scale_rewards": "group",
            **PLAIN_KL,
            **_sampler("token_mask", 1.25, 0.8),
        },
        says=("icepop with k3 in the loss", "token_mask, clip_min, clip_max"),
        note="no lower bound",
        corrected=True,
        active=(*CLIP, "masked.tokens", "kl.ref.k3"),
    ),
    Case(
        name="truncated importance sampling of replies",
        algorithm="dr_grpo",
        changes={"correction": {"use": "tis_sequence", "cap": 1.1}},
        trainer="grpo",
        settings={
            **DR_GRPO,
            **_sampler("sequence_truncate", 1.1),
        },
        says=("tis_sequence 1.1", "sequence_truncate, clip_max 1.1"),
        corrected=True,
        active=CLIP,
    ),
    Case(
        name="masked importance sampling of replies",
        algorithm="dr_grpo",
        changes={"correction": {"use": "mis", "high": 1.2}},
        trainer="grpo",
        settings={
            **DR_GRPO,
            **_sampler("sequence_mask", 1.2),
        },
        says=("correction mis 1.2", "sequence_mask, clip_max 1.2"),
        note="this mode, clip_max 3: replies that stay keep their product as weight",
        corrected=True,
        active=(*CLIP, "masked.tokens"),
    ),
    Case(
        name="RLOO, clipped product ratio, KL in the reward",
        algorithm="rloo",
        changes={
            "objective": {"use": "sequence_clip", "low": 0.2},
            "aggregation": "sequence",
            "kl": {"where": "reward", "estimator": "k1", "coefficient": 0.05},
        },
        trainer="rloo",
        settings={"epsilon": 0.2, "beta": 0.05},
        says=("rloo, objective sequence_clip", "RLOOTrainer"),
        note="our algorithm rloo has no ratio, no clip and no KL, as in the paper; TRL has no "
        "masks for observations "
        "here",
        observations=False,
        active=CLIP,
    ),
    Case(
        name="RLOO, theta = prox",
        algorithm="rloo",
        changes={"aggregation": {"length": 1}},
        trainer="rloo",
        settings={"epsilon": 0.2, "beta": 0.0},
        says=("rloo, length 1", "RLOOTrainer, first pass, beta 0"),
        note="the value of the loss is another: -A log theta here, -A theta / prox there",
        moved=False,
        observations=False,
        compares=GRADIENT,
    ),
    Case(
        name="DPO",
        algorithm="dpo",
        changes={"objective": {"beta": 0.5}},
        trainer="dpo",
        settings={"loss_type": "sigmoid", "beta": 0.5},
        says=("dpo, beta 0.5", "loss_type sigmoid"),
        observations=False,
        moved=False,
        compares=BLIND,
    ),
    Case(
        name="DPO, length-normalised",
        algorithm="dpo_norm",
        changes={"objective": {"beta": 5.0}},
        trainer="dpo",
        settings={"loss_type": "sigmoid_norm", "beta": 5.0},
        says=("dpo_norm, beta 5", "loss_type sigmoid_norm"),
        note="beta 0.1 there too",
        observations=False,
        moved=False,
        compares=BLIND,
    ),
    Case(
        name="SimPO",
        algorithm="simpo",
        changes={"objective": {"beta": 2.0, "gamma": 1.0}},
        trainer="cpo",
        settings={"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0.0},
        says=("simpo, beta 2, gamma 1", "CPOTrainer, loss_type simpo, cpo_alpha 0"),
        note="beta 0.1, gamma 0.5, and cpo_alpha 1 adds the cross-entropy of the better reply",
        observations=False,
        moved=False,
        compares=BLIND,
    ),
    Case(
        name="supervised, as an algorithm",
        algorithm="sft",
        trainer="sft",
        says=("sft", "SFTTrainer"),
        moved=False,
        compares=BLIND,
    ),
    Case(
        name="supervised, as a command",
        algorithm="",
        trainer="sft",
        says=("Learner.supervised_step", "SFTTrainer"),
        moved=False,
        supervised=True,
        compares=BLIND,
        twin="supervised, as an algorithm",
    ),
    Case(
        name="expert iteration",
        algorithm="rft",
        trainer="sft",
        says=("rft", "SFTTrainer on the replies of reward 1"),
        moved=False,
        winners=True,
        compares=BLIND,
    ),
)

ABSENT = (
    ("PPO with a critic, GAE", "TRL 1.16.0 has no PPO trainer any more"),
    (
        "REINFORCE, REINFORCE++, MaxRL, Kimi, OTB, DPPO, TRM, DVP, TRPO, VinePPO",
        "no trainer of TRL computes them",
    ),
    (
        "ScaleRL",
        "prompt mean and a batch spread of its own; its CISPO to the sampler is compared above",
    ),
    (
        "sequence_mask, trm",
        "masks of weight 1 on a divergence; TRL's sequence_mask keeps the product as weight",
    ),
    (
        "SAPO, VESPO, GMPO, off-policy sequence masking, entropy bonus",
        "TRL has them, Quintain has not",
    ),
)
"""What is not compared, and why."""
