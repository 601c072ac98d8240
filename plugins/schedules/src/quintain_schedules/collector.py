"""Collecting groups while the learner updates: admission by capacity, staleness, and a queue that a
checkpoint holds.

At most ``(max_staleness + 1) * batch.prompts`` groups of episodes are running, complete or in the
hands of the learner (AReaL, 2505.24298, section 5.1). A batch takes the oldest complete groups, so
that a slow episode delays its own group alone. If a schedule leaves slow groups out, one that a
batch of later groups has overtaken needs the places of its running episodes only: the others start
the next group.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

from quintain import Group, Rollout, TokenEngine
from quintain.errors import NoTasksError, RunError
from quintain.evaluation import frozen_heap
from quintain.interfaces import EpisodeOrder
from quintain.models import shares_module
from quintain.rollouts import RolloutRequest, RolloutRunner, Span
from quintain.run import Collected, Collector, check_failures
from quintain.types import AnyGroup, AnyRollout, trained

from .complete import CompleteGroup, CompleteGroups


@dataclass(kw_only=True)
class AsyncCollector(Collector):
    """Runs episodes on, also between two calls of `collect`."""

    overlaps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # With a staleness of 0, a resumed run repeats an unfinished step instead, bit for bit.
        self.saves_unfinished = self.schedule.max_staleness > 0
        self._step = 0
        self._complete = CompleteGroups()
        self._taken: list[CompleteGroup] = []  # the learner's batch, until the step is complete
        self._running: dict[int, RolloutRequest] = {}  # running and waiting, by index
        self._started: dict[int, int] = {}  # the step at the start of a group, by index
        # episodes of running and abandoned groups that have not ended, by index
        self._unfinished: dict[int, int] = {}
        # complete groups that were admitted after a running one, by its index
        self._overtaken: Counter[int] = Counter()
        self._again: list[RolloutRequest] = []  # drawn, to be started first
        # nobody waits for their episodes, which may still run
        self._abandoned: dict[int, RolloutRequest] = {}
        # abandoned, and the curriculum does not know yet
        self._unrecorded: list[RolloutRequest] = []
        self._wasted: list[
            AnyGroup
        ] = []  # complete, but abandoned or retried, since the last batch
        self._retried, self._given_up, self._exhausted = 0, 0, ""
        self._order: EpisodeOrder | None = self.schedule.episode_order()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._concurrency = 0  # of the last step
        self._version = 0
        self._measured, self._idle, self._waited = time.monotonic(), 0.0, 0.0
        self._idle_from: float | None = self._measured

    @property
    def _engine(self) -> TokenEngine:
        engine = self.rollout_context.engine
        assert isinstance(engine, TokenEngine)  # the only kind that trains
        return engine

    # ---------------------------------------------------------------- what the run calls
    async def collect(self, step: int) -> Collected:
        """Wait for the next batch; episodes of later ones run on. Raises as `Collector.collect`."""
        self._step, self._taken, self._version = step, [], self._engine.version
        self.screen.phase(f"step {step}: rollouts")
        context = replace(self.rollout_context, step=step, waits=not self.saves_unfinished)
        if self._task is None:
            self._concurrency = context.concurrency
            choose = self._choose if self.saves_unfinished or self._order else None
            self._runner = RolloutRunner(context, self._on_rollout, self._on_group, choose)
            self._task = asyncio.create_task(
                self._runner.run((), endless=True), name="quintain-rollouts"
            )
            await asyncio.sleep(0)  # it is ready for requests
        # A run may change its concurrency between two steps.
        self._runner.concurrency += context.concurrency - self._concurrency
        self._concurrency = context.concurrency
        began = time.monotonic()
        if self.schedule.stale != "retry":
            self._abandon_old()
        with frozen_heap():
            while True:
                self._refuse_stale()
                self._runner.add(self._admit())
                if (batch := self._batch()) is not None:
                    break
                self._changed.clear()
                await self._progress()
        self._waited += time.monotonic() - began
        with Span("batch", groups=[c.group.index for c in self._taken]):
            self._offer_replays(batch, context)
        self._start_admitted()
        return batch

    def complete(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Record *outcomes* in the curriculum, and start groups of the next batches."""
        super().complete({**dict.fromkeys((r.index for r in self._unrecorded), (0, 0)), **outcomes})
        self._taken, self._unrecorded = [], []
        self._step += 1
        self._start_admitted()

    @property
    def samples_here(self) -> bool:
        """Whether this process has episodes to sample for now, also while the learner updates."""
        return self.saves_unfinished and bool(self._running) and shares_module(type(self._engine))

    async def aclose(self) -> None:
        """Cancel the running episodes."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # `collect` raised its error
                await self._task

    # ---------------------------------------------------------------- admission
    def _admit(self) -> list[RolloutRequest]:
        """Return the requests that the capacity admits now."""
        plan = self.algorithm.plan
        ahead = self.schedule.max_staleness
        batches = self.steps - self._step + 1
        taken = self.groups if self._taken else 0
        ready = taken + self._complete.count(rejected=plan.resample == "none")
        overtaken = sum(count >= self.groups for count in self._overtaken.values())
        room = min(self.groups * (ahead + 1) + overtaken, self.groups * batches)
        room -= ready + len(self._running)
        if overtaken:
            # A group starts when all its episodes can: from its first token on, it ages.
            episodes = (self.groups * (ahead + 1) - ready) * self.group_size
            episodes -= sum(self._unfinished[index] for index in self._running)
            room = min(room, episodes // self.group_size)
        if plan.resample != "none":
            tried = len(self._complete) + len(self._running)
            room = min(room, (ahead + plan.attempts) * self.groups - tried)
        if plan.resample == "dynamic" and not ahead and self._running:
            room = 0  # a round is complete before the next
        requests: list[RolloutRequest] = []
        while len(requests) < room:
            try:
                request = self._again.pop(0) if self._again else self._next_job()
            except NoTasksError as e:
                if not (requests or self._running or self._complete or self._taken):
                    raise
                self._exhausted = str(e)
                break
            request = self._running[request.index] = replace(request, step=self._step + bool(taken))
            self._unfinished[request.index] = self.group_size
            requests.append(request)
        if requests and self._idle_from is not None:
            self._idle, self._idle_from = self._idle + time.monotonic() - self._idle_from, None
        return requests

    def _start_admitted(self) -> None:
        """Start what the capacity admits while the learner has its batch; with a staleness of 0,
        nothing.
        """
        if self.saves_unfinished and self._task is not None and not self._task.done():
            self._runner.add(self._admit())

    def _choose(self, waiting: Sequence[tuple[RolloutRequest, int, int]]) -> int:
        position = self._order.choose(waiting) if self._order else 0
        self._started.setdefault(waiting[position][0].index, self._step)
        return position

    def _on_rollout(self, rollout: AnyRollout) -> None:
        self.screen.advance(rollout)
        if self._order is not None:
            self._order.observe(rollout)
        self._unfinished[rollout.group] -= 1
        if rollout.group in self._abandoned:
            self._runner.concurrency -= 1
        elif self._overtaken[rollout.group] >= self.groups:
            self._start_admitted()

    def _on_group(self, group: AnyGroup) -> Sequence[RolloutRequest]:
        """Keep a complete group; return the requests that it makes room for."""
        self._changed.set()
        del self._unfinished[group.index]
        if self._abandoned.pop(group.index, None) is not None:
            self._wasted.append(group)
            return ()
        if self.saves_unfinished and self.schedule.stale != "wait":
            # These groups run, and were admitted before the one that is complete: it has overtaken
            # them. With "wait" nobody asks, since each group has its place in a batch.
            admitted_before = takewhile(lambda index: index != group.index, self._running)
            self._overtaken.update(admitted_before)
        request = self._running.pop(group.index)
        self._started.pop(group.index, None)
        del self._overtaken[group.index]
        self._complete.add(self._complete_group(request, group, self._rejection(group)))
        if not self._running:
            self._idle_from = time.monotonic()
        return (
            self._admit()
            if self.saves_unfinished or self.algorithm.plan.resample == "active"
            else ()
        )

    def _complete_group(
        self, request: RolloutRequest, group: AnyGroup, reason: str
    ) -> CompleteGroup:
        versions = (
            v
            for _, _, sequences in trained([group])
            for s in sequences
            for v in s.versions
            if v >= 0
        )
        return CompleteGroup(
            request=request, group=group, reason=reason, oldest=min(versions, default=None)
        )

    def _refuse_stale(self) -> None:
        """Refuse complete groups with a token that is too old."""
        refused = self._complete.refuse_older(self._version - self.schedule.max_staleness)
        if refused and self.schedule.stale == "retry":
            self._retried += len(refused)
            self._again += [c.request for c in refused]
            self._wasted += [c.group for c in refused]
            self._complete.take(reasons={"stale"})

    def _abandon_old(self) -> None:
        """Give up groups that run for too long. None becomes so until the next step."""
        first = self._step - self.schedule.max_staleness
        for index in [i for i in self._running if self._started.get(i, first) < first]:
            del self._started[index]
            self._abandoned[index] = self._running.pop(index)
            self._unrecorded.append(self._abandoned[index])
            self._given_up += 1
            self._runner.concurrency += self._unfinished[index]
            del self._overtaken[index]

    # ---------------------------------------------------------------- batches
    def _batch(self) -> Collected | None:
        """Return the next batch, if it is complete or cannot become so."""
        plan, complete = self.algorithm.plan, self._complete
        every = plan.resample == "none"
        if not complete.valid:
            check_failures([c.group for c in complete], self.groups)
        spent = not every and len(complete) >= plan.attempts * self.groups
        if complete.count(rejected=every) < self.groups and not spent and self._running:
            return None
        waits = self.schedule.stale == "wait" and not spent and bool(self._running)
        started = Counter(self._started.get(index, self._step) for index in self._running)
        if waits and self._would_be_stale(started):
            return None  # whatever else is complete
        usable = complete.usable(rejected=every)
        started.update(
            self._step if c.oldest is None else c.oldest + 1 for c in usable[self.groups :]
        )
        if waits and self._would_be_stale(started):
            return None
        batch = {c.group.index for c in usable[: self.groups]}
        self._taken = complete.take(batch, {"stale"} if every else complete.reasons())
        limit = f"{len(self._taken)} groups were tried, the limit of plan.attempts"
        wasted, self._wasted = self._wasted, []
        return Collected(
            tried=tuple(c.group for c in self._taken),
            accepted=tuple(c.group for c in self._taken if not c.reason),
            rejected=Counter(c.reason for c in self._taken if c.reason),
            size=self.groups,
            cause=(self._exhausted or limit) if len(batch) < self.groups else "",
            wasted=wasted,
        )

    def _would_be_stale(self, started: Counter[int]) -> bool:
        """Return whether one of the groups that the next batch does not take would be too old for
        its own, given how many were *started* in which step.

        Each needs a later batch. Sorted by age, the i-th oldest goes into the (i // groups)-th of
        these. If one would be too old by then, the learner waits for a running group, so that its
        weights do not move on.
        """
        ahead = self.schedule.max_staleness - self._step
        older = 0
        for step in sorted(started):
            older += started[step]
            if step + ahead <= (older - 1) // self.groups:
                return True
        return False

    async def _progress(self) -> None:
        """Wait until a group is complete.

        Raises:
            RunError: and others, with which the episodes failed.
        """
        assert self._task is not None
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if self._task.done():
            await self._task

    # ---------------------------------------------------------------- metrics
    def metrics(self, collected: Collected) -> dict[str, Any]:
        """Return those of `Collector.metrics`, the staleness of the batch, the queue, idle shares
        and throughput.
        """
        now = time.monotonic()
        passed, self._measured = max(now - self._measured, 1e-9), now
        idle = self._idle + (now - self._idle_from if self._idle_from is not None else 0.0)
        self._idle, self._idle_from = 0.0, now if self._idle_from is not None else None
        waited, self._waited = self._waited, 0.0
        sampled = [
            [v for s in sequences for v in s.versions if v >= 0]
            for _, _, sequences in trained(collected.accepted)
        ]
        behind = Counter(self._version - v for versions in sampled for v in versions)
        speed = sum(r.tokens for g in collected.tried for r in g.rollouts) / passed
        metrics = super().metrics(collected) | {
            "groups.retried": self._retried,
            "groups.abandoned": self._given_up,
            "queue.complete": len(self._complete),
            "queue.running": len(self._running),
            "idle.learner": min(1.0, waited / passed),
            "idle.sampler": min(1.0, idle / passed),
            "throughput.tokens_per_second": speed,
            # The seconds of the rollouts are here those in which the learner waited; episodes run
            # all the time.
            "tokens_per_second": speed,
        }
        self._retried = self._given_up = 0
        if total := behind.total():
            metrics |= {
                f"staleness.share.{k}": behind[k] / total
                for k in range(self.schedule.max_staleness + 1)
            }
            metrics["staleness.mixed"] = sum(len(set(versions)) > 1 for versions in sampled) / len(
                sampled
            )
        return metrics

    # ---------------------------------------------------------------- checkpoints
    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: complete groups with their rollouts, and the prompts
        of the others.
        """
        open_prompts = [*self._again, *self._running.values(), *self._unrecorded]
        return {
            "groups": [
                {
                    **self._named(c.request),
                    "reason": c.reason,
                    "rollouts": [r.to_json() for r in c.group.rollouts],
                }
                for c in (*self._taken, *self._complete)
            ],
            "prompts": [
                self._named(request) for request in sorted(open_prompts, key=lambda r: r.index)
            ],
            "retried": self._retried,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`; results of environments are plain data then.

        Raises:
            RunError: an environment no longer has a task.
        """
        entries = [*state.get("groups", ()), *state.get("prompts", ())]
        tasks: dict[tuple[int, str], Any] = {}
        for index in range(len(self.environments)):
            wanted = {entry["task"] for entry in entries if entry["environment"] == index}
            for task in self.curriculum.reader(index)() if wanted else ():
                if task.id in wanted:
                    tasks[index, task.id] = task
                    wanted.discard(task.id)
                    if not wanted:
                        break
            if wanted:
                raise RunError(
                    f"environment {self.names[index]!r} no longer yields the task {min(wanted)!r}, "
                    "which was in progress at the checkpoint; restore its original data, or start "
                    "a new run from its model"
                )
        requests = [
            RolloutRequest(
                environment=self.environments[entry["environment"]],
                task=tasks[entry["environment"], entry["task"]],
                group_size=self.group_size,
                name=self.names[entry["environment"]],
                index=entry["index"],
                visit=entry["visit"],
            )
            for entry in entries
        ]
        self._retried = state.get("retried", 0)
        for request, entry in zip(requests, state.get("groups", ()), strict=False):
            rollouts = tuple(Rollout.from_json(r, type(request.task)) for r in entry["rollouts"])
            group = Group(
                task=request.task, rollouts=rollouts, environment=request.name, index=request.index
            )
            self._complete.add(self._complete_group(request, group, entry["reason"]))
        self._again = requests[len(self._complete) :]

    def _named(self, request: RolloutRequest) -> dict[str, Any]:
        index = next(
            i
            for i, environment in enumerate(self.environments)
            if environment is request.environment
        )
        return {
            "environment": index,
            "task": request.task.id,
            "index": request.index,
            "visit": request.visit,
        }
