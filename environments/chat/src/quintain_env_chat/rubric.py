"""Rubrics: weighted criteria, how they are decided, and the score of a reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain import Rollout, Score, Task, need, reward
from quintain.errors import UsageError
from quintain_judge import JudgeService, checkable, why_empty

SMALLEST_WEIGHT = 1e-6
MET = 0.5
"""Score from which a criterion that must be met is, and a fault is found."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A description of how far a criterion is met, and its *score* from 0 to 1."""

    text: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One criterion of a rubric.

    Attributes:
        text: a statement about the reply, such as ``Mentions the date.``
        weight: what meeting it adds; below 0 for a fault, which costs.
        check: decided by rules (`quintain_judge.check`), never by a judge.
        must: where it is not met, or where the fault is found, the merits of the other criteria
            count nothing.
        levels: descriptions of which the judge chooses one, with their scores, or as texts from the
            worst (0) to the best (1); none: the judge gives a score.
    """

    text: str
    weight: float = 1.0
    check: bool = False
    must: bool = False
    levels: tuple[str | Level, ...] = ()

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("a criterion without text; write what a good reply does")
        if not (math.isfinite(self.weight) and abs(self.weight) >= SMALLEST_WEIGHT):
            raise UsageError(
                f"the criterion {self.text!r} has the weight {self.weight}; expected a number, not "
                f"0 and not below {SMALLEST_WEIGHT:g} in size"
            )
        if self.check and not checkable(self.text):
            raise UsageError(
                f"no rule decides the criterion {self.text!r}; leave out check = true, or write it "
                "in the grammar of quintain_judge.rules"
            )
        if self.levels and (
            self.check or len(self.levels) < 2 or not all(0 <= s <= 1 for _, s in self.scale)
        ):
            raise UsageError(
                f"the criterion {self.text!r} has levels that a judge cannot choose from; expected "
                "at least two, with scores from 0 to 1, and no check = true"
            )

    @property
    def scale(self) -> tuple[tuple[str, float], ...]:
        """The levels with their scores."""
        best = max(len(self.levels) - 1, 1)
        return tuple(
            (level.text, level.score) if isinstance(level, Level) else (level, number / best)
            for number, level in enumerate(self.levels)
        )


@dataclass(frozen=True, kw_only=True)
class ChatTask(Task):
    """A prompt with its rubric.

    Attributes:
        criteria: the rubric.
        good: every good reply, where all are known; the yardstick of `chat` reads it, the rubric
            does not.
        split: evolving rubrics change on ``train`` only, so that held-out scores compare.
    """

    criteria: tuple[Criterion, ...]
    good: tuple[str, ...] = ()
    split: str = "train"


def weighted(criteria: Sequence[Criterion], scores: Sequence[float]) -> float:
    """Return the score of a rubric (2511.19399, with another divisor where the positive weights sum
    to less than 1)::

        sum of w * s / sum of the positive w

    1 if all positive criteria are met and no fault is found; negative if faults weigh more. Where a
    criterion that must be met is not, positive terms count 0. A rubric of faults alone is divided
    by 1.

    >>> weighted([Criterion(text="a", weight=3), Criterion(text="b", weight=-1)], [1, 1])
    0.6666666666666666
    """
    pairs = list(zip(criteria, scores, strict=True))
    if vetoed(criteria, scores):
        pairs = [(c, s) for c, s in pairs if c.weight < 0]
    total: float = math.fsum(c.weight * s for c, s in pairs)
    return total / (math.fsum(c.weight for c in criteria if c.weight > 0) or 1.0)


def vetoed(criteria: Sequence[Criterion], scores: Sequence[float]) -> list[str]:
    """Return the criteria that must be met and are not, and the faults that must not be there and
    are.
    """
    return [
        c.text
        for c, s in zip(criteria, scores, strict=True)
        if c.must and (s < MET) == (c.weight > 0)
    ]


@dataclass(frozen=True, kw_only=True)
class Graded:
    """How far a reply meets each criterion of a rubric, from 0 to 1, and why the gate *stopped* it,
    if it did.
    """

    scores: tuple[float, ...]
    stopped: str = ""


async def graded(
    judge: JudgeService,
    prompt: Any,
    reply: str,
    criteria: Sequence[Criterion],
    *,
    reference: str = "",
) -> Graded:
    """Return how far *reply* meets each of *criteria*; the judge sees *reference*, a good reply,
    where it is given.

    Rules decide checks exactly, whatever the gate of the judge says of the reply, because a rule
    cannot be talked to. Of a reply that the gate stops, no other positive criterion is met and
    every other fault is found. A reply without content has every fault, so that saying nothing
    never pays.

    Raises:
        InfrastructureError: a criterion has no verdict; then the reply has no score at all.
    """
    stopped = judge.gated(reply)
    empty = bool(stopped) and bool(why_empty(reply, short=True))

    async def score(criterion: Criterion) -> float:
        if criterion.check or judge.offline:
            return 1.0 if empty and criterion.weight < 0 else judge.ruled(reply, criterion.text)
        if stopped:
            return float(criterion.weight < 0)
        judgement = judge.meets(
            prompt, reply, criterion.text, reference=reference, levels=criterion.scale
        )
        return (await judgement).score

    return Graded(scores=tuple(await asyncio.gather(*map(score, criteria))), stopped=stopped)


@reward(range=(-math.inf, 1), proxy=True)
async def rubric_score(
    rollout: Rollout[ChatTask, Any],
    *,
    criteria: Sequence[Criterion] = (),
    reference: bool = False,
    judge: JudgeService = need(),
) -> Score:
    """Return the weighted share of the criteria that the reply meets, those of the task and
    *criteria*, at most 1.

    Checks are decided by rules and cost no call; every other criterion is one call of the judge.
    With *reference* the judge sees the answer of the task, where it has one.

    Raises:
        InfrastructureError: a criterion has no verdict.
        UsageError: there is no criterion at all.
    """
    task = rollout.task
    used = (*getattr(task, "criteria", ()), *criteria)
    if not used:
        raise UsageError(
            f"task {task.id} has no criteria; give rubric_score(criteria = [...]) or a rubric per "
            f"task"
        )
    shown = str(task.answer) if reference and task.answer is not None else ""
    verdict = await graded(judge, task.prompt, rollout.reply, used, reference=shown)
    scores = verdict.scores
    met = [s for c, s in zip(used, scores, strict=True) if c.weight > 0]
    faults = [s for c, s in zip(used, scores, strict=True) if c.weight < 0]
    parts = {"stopped": float(bool(verdict.stopped))}
    if met:
        parts["met"] = math.fsum(met) / len(met)
    if faults:
        parts["faults"] = math.fsum(faults) / len(faults)
    return Score(value=weighted(used, scores), parts=parts, reason=_why(used, verdict)[:500])


def _why(criteria: Sequence[Criterion], verdict: Graded) -> str:
    """Return what the gate said, what had to be met, and what else was missed."""
    must = vetoed(criteria, verdict.scores)
    missed = [
        c.text for c, s in zip(criteria, verdict.scores, strict=True) if (s < 1) == (c.weight > 0)
    ]
    notes = [f"not judged: {verdict.stopped}"] if verdict.stopped else []
    notes += [f"must: {text}" for text in must] + [text for text in missed if text not in must]
    return "; ".join(notes)
