"""Collecting the groups of a step: draw tasks, run and score their episodes, filter groups, resample.

A batch is the first admitted groups in the order in which the curriculum gave their tasks, never in that of finishing,
which would favour short answers. At no time are more groups under way or accepted than the batch has room for, so
nothing accepted is ever thrown away, and both ways to refill try the same tasks: as many as it takes, one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import NoTasksError, RunError
from ..interfaces.algorithm import Candidate, Row
from ..interfaces.environment import Environment
from ..interfaces.learner import overlong
from ..interfaces.sampling_plan import Plan
from ..rollouts.runner import Job, Setting, run_groups
from ..types.rollout import AnyGroup, Rollout, trained
from ..types.transcript import Source
from .replays import Replays
from .screen import Screen
from .tasks import Curriculum


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The groups of a step.

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
) -> Collected:
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
    return Collected(
        tried=tuple(tried),
        admitted=tuple(g for g, reason in zip(tried, reasons, strict=True) if not reason),
        refused=Counter(filter(None, reasons)),
        wanted=groups,
        rounds=rounds,
        cause=supply.cause,
    )


@dataclass(kw_only=True)
class Collector:
    """Turns tasks into the scored groups of a step.

    Attributes:
        row: its group filter and sampling plan decide which groups are kept.
        curriculum: which task comes next.
        environments: by position, as the curriculum counts them.
        names: of the environments, as rollouts and metrics carry them.
        setting: what all episodes share; each step gets its own number.
        groups: of a full batch.
        members: rollouts per group.
        min_members: valid rollouts that a group needs besides what the group filter asks for.
        screen: shows progress.
        replays: plays episodes of the last step again for advantages that ask for it.
    """

    row: Row
    curriculum: Curriculum
    environments: Sequence[Environment[Any, Any]]
    names: Sequence[str]
    setting: Setting
    groups: int
    members: int
    min_members: int = 1
    screen: Screen
    replays: Replays = field(default_factory=Replays)

    async def collect(self, step: int) -> Collected:
        """Run groups until the batch is full, or as the plan says. Failed rollouts leave; they are never zeros.

        Raises:
            NoTasksError: an environment has no tasks.
            RunError: every episode failed, for reasons of ours.
        """
        plan = self.row.plan

        def show(number: int, groups: int) -> None:
            which = f", round {number}" if number > 1 else ""
            total = None if plan.refill == "active" else groups * self.members
            self.screen.phase(f"step {step}: rollouts{which}", total)

        setting = replace(self.setting, step=step)
        collected = await fill(
            plan,
            self.groups,
            setting,
            draw=self._next_job,
            refusal=self._refusal,
            on_round=show,
            on_rollout=self.screen.advance,
        )
        self.replays.take([rollout for rollout, _, _ in trained(collected.admitted)], setting)  # one per sample
        return collected

    def _next_job(self) -> Job:
        (pick,) = self.curriculum.pick(1)
        return Job(
            environment=self.environments[pick.environment],
            task=pick.task,
            members=self.members,
            name=self.names[pick.environment],
            index=pick.index,
            visit=pick.visit,
        )

    def _refusal(self, group: AnyGroup) -> str:
        valid = group.valid
        if len(valid) < self.min_members:
            return "too few valid members"
        seats = dict.fromkeys(seat for r in valid for seat in r.transcripts)
        reasons = [str(self.row.admission(self._candidate(group, seat))) for seat in seats]
        return "" if "" in reasons else next(iter(reasons), "no tokens to train on")

    def _candidate(self, group: AnyGroup, seat: str) -> Candidate:
        """The valid rollouts that *seat* took part in: the rollouts of a seat are compared among themselves."""
        rollouts = [r for r in group.valid if seat in r.transcripts]
        verdicts = tuple(r.verdict.of_seat(seat) if r.verdict else 0.0 for r in rollouts)
        shaping = [r.shaping.of_seat(seat) if r.shaping else 0.0 for r in rollouts]
        lengths = [max((t.tokens for t in r.turns if t.seat == seat), default=0) for r in rollouts]
        punished = [overlong(length, self.setting.how.max_tokens, self.row.overlong) for length in lengths]
        totals = tuple(map(math.fsum, zip(verdicts, shaping, punished, strict=True)))
        return Candidate(verdicts=verdicts, totals=totals, requested=len(group.rollouts))

    def metrics(self, collected: Collected) -> dict[str, Any]:
        """Metrics of what the plan did in the step of *collected*."""
        plan, valid = self.row.plan, [r for g in collected.tried for r in g.valid]
        metrics: dict[str, Any] = {**self.curriculum.metrics()}
        if plan.refill != "none":
            metrics |= collected.metrics()
        if plan.interrupt is not None and valid:
            metrics["interrupted"] = sum(map(_interrupted, valid)) / len(valid)
        return metrics


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


def _interrupted(rollout: Rollout[Any, Any]) -> bool:
    return any(Source.FORCED in branch.sources for t in rollout.transcripts.values() for branch in t.branches)
