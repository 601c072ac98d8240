"""Collecting the groups of a step: draw tasks, run and score their episodes, filter groups,
resample.

A batch consists of the first accepted groups in the order of the curriculum, not in the order of
completion, which would favour short answers. Running and accepted groups never exceed the size of
the batch, so no accepted group is discarded, and both ways to resample try the same tasks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..console.screen import Screen
from ..errors import NoTasksError, RunError
from ..evaluation.evaluation import frozen_heap
from ..interfaces.algorithm import Algorithm, GroupStats, overlong
from ..interfaces.curriculum import Curriculum
from ..interfaces.environment import Environment
from ..interfaces.rollout_request import RolloutRequest
from ..interfaces.sampling_plan import SamplingPlan
from ..interfaces.schedule import Schedule
from ..rollouts.runner import RolloutContext, run_groups
from ..types.rollout import AnyGroup, Rollout
from ..types.transcript import TokenSource
from .replays import Replay


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The groups of a step.

    Attributes:
        tried: all groups, in the order of their tasks.
        accepted: the groups of the batch, in the same order.
        rejected: number of rejected groups, by reason.
        size: groups of a full batch.
        rounds: number of rounds in which groups were started together.
        cause: why groups are missing after resampling; empty if none is missing.
        wasted: groups that were sampled in vain, abandoned or retried; they count in the totals of
            the run alone.
    """

    tried: tuple[AnyGroup, ...]
    accepted: tuple[AnyGroup, ...]
    rejected: Counter[str]
    size: int
    rounds: int = 1
    cause: str = ""
    wasted: Sequence[AnyGroup] = ()

    def metrics(self) -> dict[str, int]:
        """Return the numbers of accepted groups, missing groups and rounds."""
        return {
            "groups.accepted": len(self.accepted),
            "groups.missing": self.size - len(self.accepted),
            "groups.rounds": self.rounds,
        }


async def fill(
    plan: SamplingPlan,
    groups: int,
    context: RolloutContext,
    *,
    draw: Callable[[], RolloutRequest],
    rejection: Callable[[AnyGroup], str],
    on_round: Callable[[int, int], None] | None = None,
    on_rollout: Callable[[Rollout[Any, Any]], None] | None = None,
) -> Collected:
    """Try groups until *groups* are accepted or the limit of *plan* is reached.

    Args:
        draw: returns the next task to try.
        rejection: why a complete group is rejected, empty if it is accepted; called once per group.
        on_round: called with the number of a round, from 1, and its number of groups.

    Raises:
        NoTasksError: there are no tasks at all; if they run out later, accepted groups are kept.
        RunError: every episode failed for reasons other than the policy.
    """
    supply = _Supply(plan, groups, draw, rejection)
    tried: list[AnyGroup] = []
    rounds = 0
    while requests := supply.next_requests(groups - supply.accepted):
        rounds += 1
        if on_round is not None:
            on_round(rounds, len(requests))
        finished = await run_groups(
            requests,
            context,
            on_rollout,
            supply.replacement_for if plan.resample == "active" else None,
        )
        for group in finished:
            supply.reason(group)
        tried += finished
        if plan.resample != "dynamic":
            break
    reasons = [supply.reason(group) for group in tried]
    return Collected(
        tried=tuple(tried),
        accepted=tuple(g for g, reason in zip(tried, reasons, strict=True) if not reason),
        rejected=Counter(filter(None, reasons)),
        size=groups,
        rounds=rounds,
        cause=supply.cause,
    )


@dataclass(kw_only=True)
class Collector:
    """Turns tasks into the scored groups of a step.

    Attributes:
        algorithm: its group filter and sampling plan decide which groups are accepted.
        curriculum: chooses the tasks.
        environments: by position in the curriculum.
        names: of the environments, in rollouts and metrics.
        rollout_context: shared by all rollouts; each step sets its number.
        groups: number of groups of a full batch.
        group_size: rollouts per group.
        min_group_size: minimum number of valid rollouts, in addition to the group filter.
        screen: shows progress.
        replays: replays episodes of the last step for advantages that need it.
        schedule: how far sampling runs ahead of the learner, for collectors that overlap.
        steps: of the run; no group is started beyond its batches.
    """

    algorithm: Algorithm
    curriculum: Curriculum
    environments: Sequence[Environment[Any, Any]]
    names: Sequence[str]
    rollout_context: RolloutContext
    groups: int
    group_size: int
    min_group_size: int = 1
    screen: Screen
    replays: Replay = field(default_factory=Replay)
    schedule: Schedule = field(default_factory=Schedule)
    steps: int = 0
    overlaps: ClassVar[bool] = False
    """Whether episodes run while the learner updates."""
    saves_unfinished: bool = field(default=False, init=False)
    """Whether `state` has the unfinished work of a step."""

    @property
    def samples_here(self) -> bool:
        """Whether this process has episodes to sample for now, also while the learner updates."""
        return False

    async def collect(self, step: int) -> Collected:
        """Run groups until the batch is full or the limit of the plan is reached. Failed rollouts
        are left out.

        Raises:
            NoTasksError: an environment has no tasks.
            RunError: every episode failed for reasons other than the policy.
        """
        plan = self.algorithm.plan

        def show(number: int, groups: int) -> None:
            which = f", round {number}" if number > 1 else ""
            total = None if plan.resample == "active" else groups * self.group_size
            self.screen.phase(f"step {step}: rollouts{which}", total)

        context = replace(self.rollout_context, step=step)
        with frozen_heap():
            collected = await fill(
                plan,
                self.groups,
                context,
                draw=self._next_job,
                rejection=self._rejection,
                on_round=show,
                on_rollout=self.screen.advance,
            )
        self._offer_replays(collected, context)
        return collected

    def _offer_replays(self, collected: Collected, context: RolloutContext) -> None:
        by_name = dict(zip(self.names, self.environments, strict=True))
        self.replays.remember(collected.accepted, context, by_name)

    def complete(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Complete the step: record in the curriculum the successful and the valid rollouts, by
        index of a group.
        """
        self.curriculum.record(outcomes)

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: groups that no batch has taken."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`, after that of the curriculum."""

    async def aclose(self) -> None:
        """End the episodes that still run."""

    def _next_job(self) -> RolloutRequest:
        (pick,) = self.curriculum.pick(1)
        return RolloutRequest(
            environment=self.environments[pick.environment],
            task=pick.task,
            group_size=self.group_size,
            name=self.names[pick.environment],
            index=pick.index,
            visit=pick.visit,
        )

    def _rejection(self, group: AnyGroup) -> str:
        valid = group.valid
        if len(valid) < self.min_group_size:
            return "too few valid samples"
        players = dict.fromkeys(player for r in valid for player in r.conversations)
        reasons = [
            str(self.algorithm.group_filter(self._group_stats(group, player))) for player in players
        ]
        return "" if "" in reasons else next(iter(reasons), "no tokens to train on")

    def _group_stats(self, group: AnyGroup, player: str) -> GroupStats:
        """Return the statistics of the valid rollouts with *player*; each player is compared with
        itself only.
        """
        rollouts = [r for r in group.valid if player in r.conversations]
        outcomes = tuple(r.outcome.of_player(player) if r.outcome else 0.0 for r in rollouts)
        shaping = [r.shaping.of_player(player) if r.shaping else 0.0 for r in rollouts]
        lengths = [
            max((t.tokens for t in r.turns if t.player in r.conversations[player]), default=0)
            for r in rollouts
        ]
        punished = [
            overlong(length, self.rollout_context.sampling.max_tokens, self.algorithm.overlong)
            for length in lengths
        ]
        totals = tuple(map(math.fsum, zip(outcomes, shaping, punished, strict=True)))
        return GroupStats(outcomes=outcomes, totals=totals, requested=len(group.rollouts))

    def metrics(self, collected: Collected) -> dict[str, Any]:
        """Return the metrics of the curriculum, the plan and the rewards' time in the step of
        *collected*.
        """
        plan, valid = self.algorithm.plan, [r for g in collected.tried for r in g.valid]
        metrics: dict[str, Any] = {
            **self.curriculum.metrics(),
            **self.rollout_context.grading.take_metrics(),
        }
        if plan.resample != "none":
            metrics |= collected.metrics()
        if plan.thinking_budget is not None and valid:
            forced = [
                any(
                    TokenSource.FORCED in b.sources
                    for t in r.transcripts.values()
                    for b in t.branches
                )
                for r in valid
            ]
            metrics["thinking_budget.reached"] = sum(forced) / len(valid)
        return metrics


class _Supply:
    """Draws tasks within the budget of a step and records the results of the groups."""

    def __init__(
        self,
        plan: SamplingPlan,
        groups: int,
        draw: Callable[[], RolloutRequest],
        rejection: Callable[[AnyGroup], str],
    ) -> None:
        self._left = groups * (plan.attempts if plan.resample != "none" else 1)
        self._groups, self._draw, self._rejection = groups, draw, rejection
        self._drawn = 0
        self._reasons: dict[int, str] = {}
        self._judged: list[AnyGroup] = []
        self.accepted = 0
        self.cause = ""

    def next_requests(self, count: int) -> list[RolloutRequest]:
        """Return the next *count* tasks, or fewer if the budget ends."""
        requests: list[RolloutRequest] = []
        while len(requests) < count and self._left:
            try:
                requests.append(self._draw())
            except NoTasksError as e:
                if not (self._drawn or requests):
                    raise
                self._left, self.cause = 0, str(e)
                break
            self._left -= 1
        self._drawn += len(requests)
        if len(requests) < count:
            self.cause = (
                self.cause or f"{self._drawn} groups were tried, the limit of plan.attempts"
            )
        return requests

    def replacement_for(self, group: AnyGroup) -> Sequence[RolloutRequest]:
        """Return the replacement of *group*: none if it is accepted."""
        return self.next_requests(1) if self.reason(group) else ()

    def reason(self, group: AnyGroup) -> str:
        """Return why *group* is rejected; empty if it is accepted.

        Raises:
            RunError: the first groups, as many as a batch has, all failed for reasons other than
                the policy.
        """
        if group.index not in self._reasons:
            reason = self._reasons[group.index] = self._rejection(group)
            self.accepted += not reason
            self._judged.append(group)
            check_failures(self._judged, self._groups)
        return self._reasons[group.index]


def check_failures(groups: Sequence[AnyGroup], size: int) -> None:
    """Refuse to go on once *size* groups or more are complete without a valid rollout.

    Raises:
        RunError: no rollout is valid; the message has the most frequent failure.
    """
    if len(groups) >= size and not any(group.valid for group in groups):
        failed = Counter(
            f"{r.termination.kind}: {r.termination.reason}" for g in groups for r in g.rollouts
        )
        reason, count = failed.most_common(1)[0]
        raise RunError(
            f"all {failed.total()} episodes of the step failed, {count} of them with {reason}"
        )
