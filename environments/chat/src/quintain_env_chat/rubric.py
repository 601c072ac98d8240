"""Rubrics: weighted criteria, how they are decided, and the score of a reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain import Rollout, Score, Task, need, reward
from quintain.errors import UsageError
from quintain_judge import JudgeService, check, checkable


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One criterion of a rubric.

    Attributes:
        text: a statement about the reply, such as ``Mentions the date.``
        weight: what meeting it adds; below 0 for a fault, which costs.
        check: decided by rules (`quintain_judge.check`), never by a judge.
    """

    text: str
    weight: float = 1.0
    check: bool = False

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("a criterion without text; write what a good reply does")
        if not (math.isfinite(self.weight) and self.weight):
            raise UsageError(f"the criterion {self.text!r} has the weight {self.weight}; expected a number, not 0")
        if self.check and not checkable(self.text):
            raise UsageError(
                f"no rule decides the criterion {self.text!r}; leave out check = true, or write it in the grammar of "
                "quintain_judge.rules"
            )


@dataclass(frozen=True, kw_only=True)
class ChatTask(Task):
    """A prompt with its rubric. *split*: evolving rubrics change on ``train`` only, so that held-out scores compare."""

    criteria: tuple[Criterion, ...]
    split: str = "train"


def weighted(criteria: Sequence[Criterion], scores: Sequence[float]) -> float:
    """The score of a rubric (2511.19399)::

        sum of w * s / max(sum of the positive w, 1)

    1 if all positive criteria, whose weights sum to 1 or more, are met and no fault is found; negative if faults weigh
    more.

    >>> weighted([Criterion(text="a", weight=3), Criterion(text="b", weight=-1)], [1, 1])
    0.6666666666666666
    """
    total: float = math.fsum(c.weight * s for c, s in zip(criteria, scores, strict=True))
    return total / max(math.fsum(c.weight for c in criteria if c.weight > 0), 1.0)


async def scores_of(judge: JudgeService, prompt: Any, reply: str, criteria: Sequence[Criterion]) -> list[float]:
    """How far *reply* meets each of *criteria*, from 0 to 1.

    A reply that the gate of the judge stops has the worst scores: no positive criterion is met, and every fault is
    found, so that an empty reply never earns more than a poor one.

    Raises:
        InfrastructureError: a criterion has no verdict; then the reply has no score at all.
    """
    if judge.gated(reply):
        return [float(c.weight < 0) for c in criteria]

    async def score(criterion: Criterion) -> float:
        if criterion.check:
            return float(bool(check(criterion.text, reply)))
        return (await judge.meets(prompt, reply, criterion.text)).score

    return list(await asyncio.gather(*map(score, criteria)))


@reward(range=(-math.inf, 1))
async def rubric_score(
    rollout: Rollout[ChatTask, Any], *, criteria: Sequence[Criterion] = (), judge: JudgeService = need()
) -> Score:
    """The weighted share of the criteria that the reply meets, those of the task and *criteria*, at most 1.

    Checks are decided by rules and cost no call; every other criterion is one call of the judge.

    Raises:
        InfrastructureError: a criterion has no verdict.
        UsageError: there is no criterion at all.
    """
    all_criteria = (*getattr(rollout.task, "criteria", ()), *criteria)
    if not all_criteria:
        raise UsageError(
            f"task {rollout.task.id} has no criteria; give rubric_score(criteria = [...]) or a rubric per task"
        )
    scores = await scores_of(judge, rollout.task.prompt, rollout.reply, all_criteria)
    met = [s for c, s in zip(all_criteria, scores, strict=True) if c.weight > 0]
    faults = [s for c, s in zip(all_criteria, scores, strict=True) if c.weight < 0]
    missed = [c.text for c, s in zip(all_criteria, scores, strict=True) if (s < 1) == (c.weight > 0)]
    parts = {"met": math.fsum(met) / len(met)} if met else {}
    if faults:
        parts["faults"] = math.fsum(faults) / len(faults)
    return Score(value=weighted(all_criteria, scores), parts=parts, reason="; ".join(missed)[:500])
