"""Rewards that ask the judge: of one rollout, against a reference, by pairs, and one call for a
group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintain import Rollout, Score, group_reward, need, reward
from quintain.errors import UsageError

from .service import JudgeService

_HELPFUL = ("Answers what was asked, completely and correctly, and nothing else.",)


@reward(range=(0, 1), proxy=True)
async def judge_score(
    rollout: Rollout[Any, Any], *, rubric: str, judge: JudgeService = need()
) -> Score:
    """How well the reply meets *rubric*, whose lines are criteria of equal weight, from 0 to 1
    (pointwise).
    """
    judgement = await judge.grade(rollout.task.prompt, rollout.reply, rubric)
    return Score(value=judgement.score, reason=judgement.reason)


@reward(range=(0, 1), proxy=True)
async def judge_match(rollout: Rollout[Any, Any], *, judge: JudgeService = need()) -> Score:
    """1 if the final answer of the reply is right by the task's answer, else 0; equal text needs no
    judge.

    Raises:
        UsageError: the task has no answer.
    """
    if rollout.task.answer is None:
        raise UsageError(
            f"task {rollout.task.id} has no answer to match; use judge_score with a rubric instead"
        )
    judgement = await judge.matches(rollout.task.prompt, rollout.reply, str(rollout.task.answer))
    return Score(value=judgement.score, reason=judgement.reason)


@group_reward(range=(0, 1), proxy=True)
async def judge_pairs(
    group: Sequence[Rollout[Any, Any]],
    *,
    criteria: Sequence[str] = _HELPFUL,
    judge: JudgeService = need(),
) -> list[Score]:
    """The share of the other replies of the group that a reply is better than; a tie is half
    (pairwise).

    A group of n distinct replies costs n (n - 1) / 2 comparisons, each asked in both orders.
    """
    return explained(
        judge, group, await judge.wins(group[0].task.prompt, [r.reply for r in group], criteria)
    )


@group_reward(range=(0, 1), proxy=True)
async def judge_ranking(
    group: Sequence[Rollout[Any, Any]],
    *,
    criteria: Sequence[str] = _HELPFUL,
    judge: JudgeService = need(),
) -> list[Score]:
    """The rank of each reply within its group, from 1 (best) to 0; one call ranks the group, a
    second one swapped.

    As RULER of ART does; ranks within a group are the same for group-relative advantages on every
    task.
    """
    return explained(
        judge, group, await judge.ranks(group[0].task.prompt, [r.reply for r in group], criteria)
    )


def explained(
    judge: JudgeService, group: Sequence[Rollout[Any, Any]], values: Sequence[float]
) -> list[Score]:
    """Return the scores of a group, with the reason of each reply that the gate of the judge
    stopped.
    """
    stopped = [judge.gated(rollout.reply) for rollout in group]
    return [
        Score(value=v, reason=s and f"not judged: {s}")
        for v, s in zip(values, stopped, strict=True)
    ]
