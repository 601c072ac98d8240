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
from ..interfaces.schedule import Schedule
from ..rollouts.runner import RolloutContext, run_groups
from ..types.rollout import AnyGroup, AnyRollout
from ..types.sampling import Sampling
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


@dataclass(kw_only=True)
class Collector:
    """Turns tasks into the scored groups of a step.

    A subclass, such as one that samples ahead, reads the attributes below and overrides what the
    run calls. It may call `next_request`, `rejection` and `offer_replays`, which it leaves as they
    are.

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
        sampling_at: the settings of the samples of a step, where they change.
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
    sampling_at: Callable[[int], Sampling] | None = None
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

    # ---------------------------------------------------------------- what the run calls
    async def collect(self, step: int) -> Collected:
        """Run groups until the batch is full or the limit of the plan is reached. Failed rollouts
        are left out.

        Raises:
            NoTasksError: an environment has no tasks.
            RunError: every episode failed for reasons other than the policy.
        """
        plan = self.algorithm.plan
        active = plan.resample == "active"
        if self.sampling_at is not None:
            self.rollout_context = replace(self.rollout_context, sampling=self.sampling_at(step))
        context = replace(self.rollout_context, step=step)
        supply = _Supply(self)
        tried: list[AnyGroup] = []
        rounds = 0
        with frozen_heap():
            while True:
                # As many as the batch lacks, so that no accepted group has to be thrown away.
                requests = supply.next_requests(supply.missing)
                if not requests:
                    break
                rounds += 1
                which = f", round {rounds}" if rounds > 1 else ""
                # Nobody knows how many groups an active round tries in the end.
                episodes = None if active else len(requests) * self.group_size
                self.screen.phase(f"step {step}: rollouts{which}", episodes)
                more = supply.replacement_for if active else None
                finished = await run_groups(requests, context, self.screen.advance, more)
                tried += finished
                if not active:
                    for group in finished:
                        supply.judge(group)
                # Active sampling has replaced rejected groups within its only round.
                if plan.resample != "dynamic":
                    break
        reasons = [supply.reasons[group.index] for group in tried]
        collected = Collected(
            tried=tuple(tried),
            accepted=tuple(g for g, reason in zip(tried, reasons, strict=True) if not reason),
            rejected=Counter(filter(None, reasons)),
            size=self.groups,
            rounds=rounds,
            cause=supply.cause,
        )
        self.offer_replays(collected, context)
        return collected

    def complete(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Complete the step: record in the curriculum the successful and the valid rollouts, by
        index of a group.
        """
        self.curriculum.record(outcomes)

    def metrics(self, collected: Collected) -> dict[str, Any]:
        """Return the metrics of the curriculum, the plan and the rewards' time in the step of
        *collected*.
        """
        plan = self.algorithm.plan
        metrics: dict[str, Any] = {
            **self.curriculum.metrics(),
            **self.rollout_context.grading.take_metrics(),
        }
        if self.sampling_at is not None:
            metrics["schedule.sampling.temperature"] = self.rollout_context.sampling.temperature
        if plan.resample != "none":
            metrics |= collected.metrics()
        if plan.thinking_budget is not None:
            valid = [rollout for group in collected.tried for rollout in group.valid]
            if valid:
                forced = sum(_has_forced_tokens(rollout) for rollout in valid)
                metrics["thinking_budget.reached"] = forced / len(valid)
        return metrics

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: groups that no batch has taken."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`, after that of the curriculum."""

    async def aclose(self) -> None:
        """End the episodes that still run."""

    # ---------------------------------------------------------------- what a subclass may call
    def next_request(self) -> RolloutRequest:
        """Draw the next task of the curriculum; return the request of its group.

        Raises:
            NoTasksError: an environment has no task left.
        """
        (pick,) = self.curriculum.pick(1)
        return RolloutRequest(
            environment=self.environments[pick.environment],
            task=pick.task,
            group_size=self.group_size,
            name=self.names[pick.environment],
            index=pick.index,
            visit=pick.visit,
        )

    def rejection(self, group: AnyGroup) -> str:
        """Return why a complete *group* is rejected, empty if it is accepted."""
        if len(group.valid) < self.min_group_size:
            return "too few valid samples"
        players: dict[str, None] = {}  # in the order in which they first come
        for rollout in group.valid:
            players.update(dict.fromkeys(rollout.conversations))
        reasons = [
            str(self.algorithm.group_filter(self._group_stats(group, player))) for player in players
        ]
        # The group stays if one player has something to learn from it.
        if "" in reasons:
            return ""
        return reasons[0] if reasons else "no tokens to train on"

    def offer_replays(self, collected: Collected, context: RolloutContext) -> None:
        """Let advantages replay the episodes of the batch, which were run in *context*."""
        by_name = dict(zip(self.names, self.environments, strict=True))
        self.replays.remember(collected.accepted, context, by_name)

    def _group_stats(self, group: AnyGroup, player: str) -> GroupStats:
        """Return the statistics of the valid rollouts with *player*; each player is compared with
        itself only.
        """
        longest = self.rollout_context.sampling.max_tokens
        outcomes: list[float] = []
        totals: list[float] = []
        for rollout in group.valid:
            if player not in rollout.conversations:
                continue
            names = rollout.conversations[player]
            lengths = [turn.tokens for turn in rollout.turns if turn.player in names]
            outcome, shaping = rollout.scores_of(player)
            # The learner punishes length in the same way, when it computes the rewards to train on.
            length = overlong(max(lengths, default=0), longest, self.algorithm.overlong)
            outcomes.append(outcome)
            totals.append(math.fsum((outcome, shaping, length)))
        return GroupStats(
            outcomes=tuple(outcomes), totals=tuple(totals), requested=len(group.rollouts)
        )


def _has_forced_tokens(rollout: AnyRollout) -> bool:
    """Return whether the thinking of *rollout* was ended by its budget."""
    branches = (branch for one in rollout.transcripts.values() for branch in one.branches)
    return any(TokenSource.FORCED in branch.sources for branch in branches)


class _Supply:
    """Draws tasks within the budget of a step and records the results of the groups.

    Attributes:
        reasons: why each complete group is rejected, by its index; empty where it is accepted.
        cause: why no further task is drawn; empty while one can be.
    """

    def __init__(self, collector: Collector) -> None:
        plan = collector.algorithm.plan
        self._collector = collector
        self._limit = collector.groups * (plan.attempts if plan.resample != "none" else 1)
        self._drawn = 0
        self._judged: list[AnyGroup] = []
        self.reasons: dict[int, str] = {}
        self.cause = ""

    @property
    def missing(self) -> int:
        """Groups that the batch lacks."""
        return self._collector.groups - list(self.reasons.values()).count("")

    def next_requests(self, count: int) -> list[RolloutRequest]:
        """Return the next *count* tasks, or fewer if the budget ends."""
        requests: list[RolloutRequest] = []
        while len(requests) < count and not self.cause:
            if self._drawn == self._limit:
                self.cause = f"{self._drawn} groups were tried, the limit of plan.attempts"
                break
            try:
                requests.append(self._collector.next_request())
            except NoTasksError as e:
                if not self._drawn:
                    raise  # there are no tasks at all
                self.cause = str(e)
                break
            self._drawn += 1
        return requests

    def replacement_for(self, group: AnyGroup) -> Sequence[RolloutRequest]:
        """Return the replacement of *group*: none if it is accepted."""
        self.judge(group)
        return self.next_requests(1) if self.reasons[group.index] else ()

    def judge(self, group: AnyGroup) -> None:
        """Record why *group* is rejected, if it is. Each is judged once: a filter may have a state,
        or take a service's time.

        Raises:
            RunError: the first groups, as many as a batch has, all failed for reasons other than
                the policy.
        """
        self.reasons[group.index] = self._collector.rejection(group)
        self._judged.append(group)
        check_failures(self._judged, self._collector.groups)


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
