"""Rubrics that evolve with the policy: criteria from contrasting replies, kept while they tell
replies apart (RLER).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from statistics import pstdev
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from quintain import InfrastructureError, Rollout, Score, Service, group_reward, need
from quintain.interfaces import RunStart, StepEnd
from quintain_judge import JudgeService, drop_later

from .generation import Proposal, propose
from .rubric import ChatTask, Criterion, graded, weighted

ALIKE = 0.9
"""Similarity of two texts from which they are the same criterion."""
HISTORY = "rubrics.jsonl"
"""In the folder of a run: what happened to the rubrics, a line per change."""
MOST_EVENTS = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A criterion that was generated. *spread*: standard deviation of its scores over the last
    group that it scored.
    """

    text: str
    weight: float
    spread: float = 0.0

    @property
    def criterion(self) -> Criterion:
        return Criterion(text=self.text, weight=self.weight)


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The generated criteria of one task: *active* ones score, *inactive* ones are kept so that
    they do not return.
    """

    active: tuple[Generated, ...] = ()
    inactive: tuple[Generated, ...] = ()
    visits: int = 0


class RubricLibrary(Service):
    """The evolving rubrics of all tasks, in every checkpoint. The criteria of a task are its
    persistent ones.

    *variant* ``paper`` (DR Tulu, 2511.19399): new criteria score the group that they came from;
    afterwards those that all replies meet alike are retired, and the *most_active* with the largest
    spread stay. ``mainline`` (the port in open-instruct): new criteria score the next group of the
    task, nothing is retired for its spread, and the oldest leave when there are more than
    *most_active*.

    A generation that fails changes nothing: the group is scored with the criteria that there are. A
    group whose replies cannot be scored changes nothing either.

    Args:
        variant: ``paper`` or ``mainline``.
        most_active: generated criteria of a task that score.
        most_new: generated criteria per group.
        judge: decides criteria, and writes new ones; with rules, new ones are sentences that rules
            decide.
    """

    def __init__(
        self,
        *,
        variant: Literal["paper", "mainline"] = "paper",
        most_active: PositiveInt = 5,
        most_new: NonNegativeInt = 5,
        judge: JudgeService = need(),
    ) -> None:
        self.variant = variant
        self.most_active = most_active
        self.most_new = most_new
        self.judge = judge
        self.step = 0
        self._history: Path | None = None
        self.events: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        self._shelves: dict[str, Shelf] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def state(self) -> Mapping[str, Any]:
        """Return the shelves, as plain data."""
        return {"shelves": {task: asdict(shelf) for task, shelf in self._shelves.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._shelves = {
            task: Shelf(
                active=tuple(Generated(**g) for g in shelf["active"]),
                inactive=tuple(Generated(**g) for g in shelf["inactive"]),
                visits=shelf["visits"],
            )
            for task, shelf in state.get("shelves", {}).items()
        }

    def quintain_on_run_start(self, event: RunStart) -> None:
        """Drop what a step wrote that the run does not have."""
        self._history = Path(event.folder) / HISTORY
        drop_later(self._history, event.step)

    def quintain_on_step_end(self, event: StepEnd) -> None:
        """Append what happened to the rubrics in this step."""
        if self.events and self._history:
            with self._history.open("a", encoding="utf-8") as file:
                file.writelines(
                    json.dumps({"step": event.step, **row}) + "\n" for row in self.events
                )
        self.events.clear()

    def shelf(self, task_id: str) -> Shelf:
        """Return the generated criteria of a task."""
        return self._shelves.get(task_id, Shelf())

    async def score(self, task: ChatTask, replies: Sequence[str]) -> list[Score]:
        """Return the scores of a group of *replies*; the rubric of a task of ``train`` evolves.

        Raises:
            InfrastructureError: a reply has no verdict; the rubric is unchanged.
        """
        evolves = task.split == "train" and len(set(replies)) > 1
        async with self._locks.setdefault(task.id, asyncio.Lock()):
            before = self.shelf(task.id)
            proposed = (
                await self._proposed(task, replies, before)
                if evolves and self.variant == "paper"
                else ()
            )
            active = (*before.active, *proposed)
            criteria = (*task.criteria, *(g.criterion for g in active))
            verdicts = await asyncio.gather(
                *(graded(self.judge, task.prompt, r, criteria) for r in replies)
            )
            rows = [verdict.scores for verdict in verdicts]
            if evolves and self.variant == "mainline":
                proposed = await self._proposed(task, replies, before)
            if evolves:
                columns = list(zip(*rows, strict=True))[len(task.criteria) :]
                measured = [
                    replace(g, spread=pstdev(c)) for g, c in zip(active, columns, strict=True)
                ]
                self._keep(task.id, before, measured, proposed)
        persistent = len(task.criteria)
        return [
            Score(
                value=weighted(criteria, verdict.scores),
                parts={
                    "persistent": weighted(task.criteria, verdict.scores[:persistent])
                    if persistent
                    else 0.0,
                    "active": float(len(active)),
                },
                reason=verdict.stopped and f"not judged: {verdict.stopped}",
            )
            for verdict in verdicts
        ]

    async def _proposed(
        self, task: ChatTask, replies: Sequence[str], shelf: Shelf
    ) -> tuple[Generated, ...]:
        """Generate criteria that no rubric of the task has, at most `most_new`; none where the
        generation fails.
        """
        known = [c.text for c in task.criteria] + [g.text for g in (*shelf.active, *shelf.inactive)]
        try:
            proposals: Sequence[Proposal] = await propose(
                self.judge,
                task,
                replies,
                active=[g.criterion for g in shelf.active],
                known=known,
                most=self.most_new,
            )
        except InfrastructureError as e:
            self._note("failed", task.id, error=str(e)[:300])
            _log.warning("no new criteria for task %s: %s", task.id, e)
            return ()
        new: list[Generated] = []
        for text, weight in proposals:
            if len(new) < self.most_new and not any(alike(text, other) for other in known):
                new.append(Generated(text=text, weight=weight))
                known.append(text)
        return tuple(new)

    def _keep(
        self,
        task_id: str,
        before: Shelf,
        measured: Sequence[Generated],
        proposed: Sequence[Generated],
    ) -> None:
        """Decide which criteria stay active, write the shelf, and note what changed."""
        if self.variant == "paper":  # the proposed ones have scored this group
            pool = list(measured)
            largest = sorted((g for g in pool if g.spread > 0), key=lambda g: -g.spread)[
                : self.most_active
            ]
            active = [g for g in pool if g in largest]
        else:
            pool = [*measured, *proposed]
            active = pool[-self.most_active :]
        retired = [g for g in pool if g not in active]
        for g in proposed:
            self._note("added", task_id, text=g.text, weight=g.weight)
        for g in retired:
            self._note("retired", task_id, text=g.text, weight=g.weight, spread=g.spread)
        self._shelves[task_id] = Shelf(
            active=tuple(active), inactive=(*before.inactive, *retired), visits=before.visits + 1
        )

    def _note(self, event: str, task_id: str, **details: Any) -> None:
        self.counts[event] += 1
        self.events.append({"event": event, "task": task_id, **details})
        del self.events[:-MOST_EVENTS]  # where no hook writes them


def alike(one: str, other: str) -> bool:
    """Return whether two texts state the same criterion: equal up to marks and case, or nearly so,
    with the same numbers.
    """
    a, b = (" ".join(re.findall(r"\w+", text.lower())) for text in (one, other))
    if a == b:
        return True
    quoted_or_numbers = [
        set(re.findall(r'"[^"]*"|\d+|\bnot\b|\bno\b', text.lower())) for text in (one, other)
    ]
    return (
        quoted_or_numbers[0] == quoted_or_numbers[1]
        and SequenceMatcher(None, a, b).ratio() >= ALIKE
    )


@group_reward(proxy=True)
async def evolving_rubric(
    group: Sequence[Rollout[ChatTask, Any]], *, rubrics: RubricLibrary = need("rubric_library")
) -> list[Score]:
    """Return the score of each reply by the persistent and the active criteria of its task (RLER).

    The reward changes between visits of a task, so curves of it mean nothing. Keep the outcome
    reward `rubric_score`, which has the persistent criteria alone, and train on the difference:
    ``shaping = "evolving_rubric - rubric_score"``.

    Raises:
        InfrastructureError: a reply has no verdict; the whole group is masked, and the rubric is
            unchanged.
    """
    return await rubrics.score(group[0].task, [rollout.reply for rollout in group])
