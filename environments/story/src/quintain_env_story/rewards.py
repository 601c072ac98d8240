"""Rewards of a plan: how much it improves the likelihood of the chapter that came next (VR-CLI);
and a yardstick.

Gurung and Lapata 2025, arXiv:2503.22828. Each scores a whole group in one batch, so that its
numbers depend on the group alone; the baseline of a task is computed once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveFloat

from quintain import Rollout, Score, group_reward, need, reward
from quintain.errors import RewardFault
from quintain.evaluation import word_f1
from quintain_rewards.likelihood import (
    PUBLISHED_EDGES,
    NoiseFloor,
    Pair,
    TextLikelihood,
    TextScore,
    improvement,
    threshold_reward,
)

from .tasks import StoryResult, StoryTask, writing_prompt

Planned = Rollout[StoryTask, StoryResult]


@dataclass(frozen=True)
class Improved:
    """The scores of one chapter after a plan and without one."""

    planned: TextScore
    baseline: TextScore

    @property
    def percent(self) -> float:
        """The improvement I."""
        return improvement(self.planned, self.baseline)

    @property
    def nats(self) -> float:
        """The gain in mean log-prob, nats per token."""
        return self.planned.mean - self.baseline.mean

    def score(self, value: float) -> Score:
        """Return *value* with the numbers behind it as parts."""
        parts = {
            "improvement": self.percent,
            "nats": self.nats,
            "baseline_bits": self.baseline.bits,
        }
        return Score(value=value, parts=parts, reason=f"I = {self.percent:.3f} %")


async def improvements(group: Sequence[Planned], scorer: TextLikelihood) -> list[Improved]:
    """Return what each plan of a group does for the chapter of its task; an empty plan does
    nothing, exactly.
    """
    baselines = await scorer.baselines(
        [Pair(writing_prompt(r.task, ""), r.task.chapter) for r in group]
    )
    full = [i for i, rollout in enumerate(group) if rollout.result.plan]
    pairs = [
        Pair(writing_prompt(group[i].task, group[i].result.plan), group[i].task.chapter)
        for i in full
    ]
    scores = dict(zip(full, await scorer.score(pairs) if pairs else [], strict=True))
    return [Improved(scores.get(i, baseline), baseline) for i, baseline in enumerate(baselines)]


SHORTEST = 8
"""Words of the shortest filler and pages that a plan is compared with; the next ones are twice as
long each.
"""
MARGIN = 1.2
"""What a plan has to reach, in improvements of the best plan without a thought: texts that say
nothing differ by about as much among themselves (studies/log/learning.md).
"""


async def empty_improvement(task: StoryTask, plan: str, scorer: TextLikelihood) -> float:
    """Return the most that a plan without a thought improves the chapter of *task*, in percent,
    times `MARGIN`; at least 0.

    Filler and pages are at least as long as *plan*, and less than twice as long. Each is scored
    once per task and length, because a scorer keeps its baselines.
    """
    words = SHORTEST
    while words < len(plan.split()):
        words *= 2
    pairs = [
        Pair(writing_prompt(task, text), task.chapter) for text in ("", *task.empty_plans(words))
    ]
    bare, *others = await scorer.baselines(pairs)
    return MARGIN * max(0.0, *(improvement(score, bare) for score in others))


@group_reward(range=(0, 1), proxy=True)
async def vr_cli(
    group: Sequence[Planned],
    *,
    edges: tuple[float, float, float] = PUBLISHED_EDGES,
    floor: Literal["none", "noise", "controls"] = "noise",
    scorer: TextLikelihood = need(),
) -> list[Score]:
    """Return VR-CLI with thresholds: 0, 0.5, 0.9 or 1 by the improvement I of the chapter's
    perplexity, in percent::

        I = (1 - PPL(chapter | story, plan) / PPL(chapter | story)) * 100

    Args:
        edges: improvements from which on 0.5, 0.9 and 1 are paid; by default those of the authors'
            code.
        floor: what an improvement has to exceed. ``none``: nothing, as published. ``noise``: an
            edge below two noise floors of the scorer is raised to that. ``controls``: besides, the
            improvement counts from the most that a plan for another chapter, the copied synopsis,
            filler or a page that fits any novel reaches on the same task, and a fifth above that;
            filler and pages are as long as the plan. Two more texts for each task, and three for
            each length.
    """
    noise: NoiseFloor | None = None if floor == "none" else await scorer.noise_floor()
    gains = await improvements(group, scorer)
    empty = [
        await empty_improvement(r.task, r.result.plan, scorer) if floor == "controls" else 0.0
        for r in group
    ]
    percents = [i.percent - e for i, e in zip(gains, empty, strict=True)]
    return [
        i.score(threshold_reward(p, edges=edges, noise=noise))
        for i, p in zip(gains, percents, strict=True)
    ]


@group_reward(range=(0, 1), proxy=True)
async def vr_cli_linear(
    group: Sequence[Planned], *, full: PositiveFloat = 10.0, scorer: TextLikelihood = need()
) -> list[Score]:
    """Return the improvement I as a share of *full* percent, cut at 0 and 1; it tells a good plan
    from a better one.
    """
    return [
        i.score(min(1.0, max(0.0, i.percent / full))) for i in await improvements(group, scorer)
    ]


@group_reward(proxy=True)
async def plan_nats(group: Sequence[Planned], *, scorer: TextLikelihood = need()) -> list[Score]:
    """Return the gain in mean log-prob of the chapter, in nats per token, uncut; for shaping and
    for curves.
    """
    return [i.score(i.nats) for i in await improvements(group, scorer)]


@reward(range=(0, 1))
def plan_overlap(rollout: Planned) -> float:
    """Compare a plan with the honest one: F1 of their words (ROUGE-1, Lin 2004), 1 where the words
    are the same.

    It is the yardstick beside the likelihoods: a scorer may like a plan that is not what happens
    next. It needs no scorer and never trains.

    Raises:
        RewardFault: the task has no honest plan, such as a chapter without a summary.
    """
    if not rollout.task.answer:
        raise RewardFault(
            f"plan_overlap: the task {rollout.task.id} has no honest plan to compare with"
        )
    return word_f1(
        re.findall(r"\w+", rollout.result.plan.lower()),
        re.findall(r"\w+", str(rollout.task.answer).lower()),
    )
