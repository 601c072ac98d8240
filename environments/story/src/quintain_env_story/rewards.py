"""Rewards of a plan: how much it improves the likelihood of the chapter that came next (VR-CLI).

Gurung and Lapata 2025, arXiv:2503.22828. Each scores a whole group in one batch, so that its numbers depend on the
group alone; the baseline of a task is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveFloat

from quintain import Rollout, Score, group_reward, need
from quintain_likelihood import (
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
        """*value* with the numbers behind it as parts."""
        parts = {"improvement": self.percent, "nats": self.nats, "baseline_bits": self.baseline.bits}
        return Score(value=value, parts=parts, reason=f"I = {self.percent:.3f} %")


async def improvements(group: Sequence[Planned], scorer: TextLikelihood) -> list[Improved]:
    """What each plan of a group does for the chapter of its task; an empty plan does nothing, exactly."""
    baselines = [await scorer.baseline(Pair(writing_prompt(r.task, ""), r.task.chapter)) for r in group]
    full = [i for i, rollout in enumerate(group) if rollout.result.plan]
    pairs = [Pair(writing_prompt(group[i].task, group[i].result.plan), group[i].task.chapter) for i in full]
    scores = dict(zip(full, await scorer.score(pairs) if pairs else [], strict=True))
    return [Improved(scores.get(i, baseline), baseline) for i, baseline in enumerate(baselines)]


async def empty_improvement(task: StoryTask, scorer: TextLikelihood) -> float:
    """The most that a plan without a thought improves the chapter of *task*, in percent; at least 0. Computed once."""
    bare, *others = [
        await scorer.baseline(Pair(writing_prompt(task, plan), task.chapter)) for plan in ("", *task.empty_plans)
    ]
    return max(0.0, *(improvement(score, bare) for score in others))


@group_reward(range=(0, 1))
async def vr_cli(
    group: Sequence[Planned],
    *,
    edges: tuple[float, float, float] = PUBLISHED_EDGES,
    floor: Literal["none", "noise", "controls"] = "noise",
    scorer: TextLikelihood = need(),
) -> list[Score]:
    """VR-CLI with thresholds: 0, 0.5, 0.9 or 1 by the improvement I of the chapter's perplexity, in percent::

        I = (1 - PPL(chapter | story, plan) / PPL(chapter | story)) * 100

    Args:
        edges: improvements from which on 0.5, 0.9 and 1 are paid; by default those of the authors' code.
        floor: what an improvement has to exceed. ``none``: nothing, as published. ``noise``: an edge below two noise
            floors of the scorer is raised to that. ``controls``: besides, the improvement counts from the most that a
            plan for another chapter, the copied synopsis or filler reaches on the same task; three more texts for each
            task, scored once.
    """
    noise: NoiseFloor | None = None if floor == "none" else await scorer.noise_floor()
    found = await improvements(group, scorer)
    empty = [await empty_improvement(r.task, scorer) if floor == "controls" else 0.0 for r in group]
    percents = [i.percent - e for i, e in zip(found, empty, strict=True)]
    return [i.score(threshold_reward(p, edges=edges, noise=noise)) for i, p in zip(found, percents, strict=True)]


@group_reward(range=(0, 1))
async def vr_cli_linear(
    group: Sequence[Planned], *, full: PositiveFloat = 10.0, scorer: TextLikelihood = need()
) -> list[Score]:
    """The improvement I as a share of *full* percent, cut at 0 and 1; it tells a good plan from a better one."""
    return [i.score(min(1.0, max(0.0, i.percent / full))) for i in await improvements(group, scorer)]


@group_reward
async def plan_nats(group: Sequence[Planned], *, scorer: TextLikelihood = need()) -> list[Score]:
    """The gain in mean log-prob of the chapter, in nats per token, uncut; for shaping and for curves."""
    return [i.score(i.nats) for i in await improvements(group, scorer)]
