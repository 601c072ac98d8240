"""Filling a batch: which groups are tried when others are refused.

A batch is the first admitted groups in the order in which the curriculum gave their tasks, never in that of finishing,
which would favour short answers. At no time are more groups under way or accepted than the batch has room for, so
nothing accepted is ever thrown away, and both ways to refill try the same tasks: as many as it takes, one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import NoTasksError, RunError
from ..interfaces.sampling_plan import Plan
from ..rollouts.runner import Job, Setting, run_groups
from ..types.rollout import Group, Rollout

AnyGroup = Group[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What came of filling a batch.

    Attributes:
        tried: all groups, in the order of their tasks.
        admitted: those to learn from, in the same order.
        refused: how many others there are, by reason.
        wanted: groups that a full batch has.
        rounds: how often groups were started together.
        cause: why groups are missing after a refill; empty where none is.
    """

    tried: tuple[AnyGroup, ...]
    admitted: tuple[AnyGroup, ...]
    refused: Counter[str]
    wanted: int
    rounds: int = 1
    cause: str = ""

    def metrics(self) -> dict[str, int]:
        """How many groups were admitted, how many are missing, in how many rounds."""
        return {
            "groups.admitted": len(self.admitted),
            "groups.missing": self.wanted - len(self.admitted),
            "groups.rounds": self.rounds,
        }


async def fill(
    plan: Plan,
    groups: int,
    setting: Setting,
    *,
    draw: Callable[[], Job],
    refusal: Callable[[AnyGroup], str],
    on_round: Callable[[int, int], None] | None = None,
    on_rollout: Callable[[Rollout[Any, Any]], None] | None = None,
) -> Filled:
    """Try groups until *groups* are admitted, or as *plan* says.

    Args:
        draw: gives the next task to try.
        refusal: why a complete group is refused, empty where it is admitted; asked once per group.
        on_round: called with the number of a round, from 1, and its groups.

    Raises:
        NoTasksError: there are no tasks at all; where they run out later, what was accepted is kept.
        RunError: every episode failed, for reasons of ours.
    """
    supply = _Supply(plan, groups, draw, refusal)
    tried: list[AnyGroup] = []
    rounds = 0
    while jobs := supply.take(groups - supply.admitted):
        rounds += 1
        if on_round is not None:
            on_round(rounds, len(jobs))
        found = await run_groups(jobs, setting, on_rollout, supply.follow if plan.refill == "active" else None)
        for group in found:
            supply.reason(group)
        tried += found
        if plan.refill != "rounds":
            break
    reasons = [supply.reason(group) for group in tried]
    return Filled(
        tried=tuple(tried),
        admitted=tuple(g for g, reason in zip(tried, reasons, strict=True) if not reason),
        refused=Counter(filter(None, reasons)),
        wanted=groups,
        rounds=rounds,
        cause=supply.cause,
    )


class _Supply:
    """Hands out tasks within a step's budget, and remembers what became of the groups."""

    def __init__(self, plan: Plan, groups: int, draw: Callable[[], Job], refusal: Callable[[AnyGroup], str]) -> None:
        self._left = groups * (plan.attempts if plan.refill != "none" else 1)
        self._groups, self._draw, self._refusal = groups, draw, refusal
        self._given = 0
        self._reasons: dict[int, str] = {}
        self._failed: Counter[str] | None = Counter()  # None once an episode did not
        self.admitted = 0
        self.cause = ""

    def take(self, count: int) -> list[Job]:
        """The next *count* tasks, or as many as there may still be."""
        jobs: list[Job] = []
        while len(jobs) < count and self._left:
            try:
                jobs.append(self._draw())
            except NoTasksError as e:
                if not (self._given or jobs):
                    raise
                self._left, self.cause = 0, str(e)
                break
            self._left -= 1
        self._given += len(jobs)
        if len(jobs) < count:
            self.cause = self.cause or f"{self._given} groups were tried, as many as plan.attempts allows"
        return jobs

    def follow(self, group: AnyGroup) -> Sequence[Job]:
        """What is tried in the place of *group*: nothing where it is admitted."""
        return self.take(1) if self.reason(group) else ()

    def reason(self, group: AnyGroup) -> str:
        """Why *group* is refused.

        Raises:
            RunError: a whole batch of groups failed, for reasons of ours, before any did not.
        """
        if group.index not in self._reasons:
            reason = self._reasons[group.index] = self._refusal(group)
            self.admitted += not reason
            self._watch(group)
        return self._reasons[group.index]

    def _watch(self, group: AnyGroup) -> None:
        if self._failed is None or group.valid:
            self._failed = None
            return
        self._failed.update(f"{r.ending.kind}: {r.ending.reason}" for r in group.rollouts)
        if len(self._reasons) >= self._groups:
            reason, count = self._failed.most_common(1)[0]
            raise RunError(f"all {self._failed.total()} episodes of the step failed, {count} of them with {reason}")
