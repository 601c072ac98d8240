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
from .idle import IdleTime
from .running import RunningGroups


@dataclass(kw_only=True)
class AsyncCollector(Collector):
    """Runs episodes on, also between two calls of `collect`."""

    overlaps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # With a staleness of 0, a resumed run repeats an unfinished step instead, bit for bit.
        self.saves_unfinished = self.schedule.max_staleness > 0
        self._step = 0
        self._version = 0  # of the engine's weights, at the begin of the step
        self._running = RunningGroups(group_size=self.group_size, groups=self.groups)
        self._complete = CompleteGroups()
        self._taken: list[CompleteGroup] = []  # the learner's batch, until the step is complete
        self._again: list[RolloutRequest] = []  # drawn, to be started first
        # abandoned, and the curriculum does not know yet
        self._unrecorded: list[RolloutRequest] = []
        # complete, but abandoned or retried, since the last batch
        self._wasted: list[AnyGroup] = []
        self._retried = 0
        self._given_up = 0
        self._exhausted = ""  # why the curriculum has no further task
        self._order: EpisodeOrder | None = self.schedule.episode_order()
        self._idle = IdleTime()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    @property
    def _engine(self) -> TokenEngine:
        engine = self.rollout_context.engine
        assert isinstance(engine, TokenEngine)  # the only kind that trains
        return engine

    # ---------------------------------------------------------------- what the run calls
    async def collect(self, step: int) -> Collected:
        """Wait for the next batch; episodes of later ones run on. Raises as `Collector.collect`."""
        self._step = step
        self._taken = []
        self._version = self._engine.version
        self.screen.phase(f"step {step}: rollouts")
        context = replace(self.rollout_context, step=step, waits=not self.saves_unfinished)
        if self._task is None:
            choose = self._choose if self.saves_unfinished or self._order else None
            self._runner = RolloutRunner(
                context, self._on_rollout, self._on_group, choose, self._places
            )
            self._task = asyncio.create_task(
                self._runner.run((), endless=True), name="quintain-rollouts"
            )
            await asyncio.sleep(0)  # it is ready for requests
        began = time.monotonic()
        if self.schedule.stale != "retry":
            self._abandon_old()
        with frozen_heap():
            while True:
                self._refuse_stale()
                self._runner.add(self._admit())
                batch = self._batch()
                if batch is not None:
                    break
                self._changed.clear()
                await self._progress()
        self._idle.learner_waited(time.monotonic() - began)
        with Span("batch", groups=[c.group.index for c in self._taken]):
            self.offer_replays(batch, context)
        self._start_admitted()
        return batch

    def complete(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Record *outcomes* in the curriculum, and start groups of the next batches."""
        abandoned = {request.index: (0, 0) for request in self._unrecorded}
        super().complete({**abandoned, **outcomes})
        self._taken = []
        self._unrecorded = []
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
        # What is sampled while the learner has its batch belongs to the next step.
        step = self._step + bool(self._taken)
        requests: list[RolloutRequest] = []
        for _ in range(self._room()):
            try:
                request = self._again.pop(0) if self._again else self.next_request()
            except NoTasksError as e:
                if not (requests or self._running or self._complete or self._taken):
                    raise
                # The batch is what there is.
                self._exhausted = str(e)
                break
            request = replace(request, step=step)
            self._running.add(request)
            requests.append(request)
        if requests:
            self._idle.sampler_starts()
        return requests

    def _room(self) -> int:
        """Return how many groups may start now; none if the number is below 1."""
        plan, ahead = self.algorithm.plan, self.schedule.max_staleness
        if plan.resample == "dynamic" and not ahead and self._running:
            return 0  # a round is complete before the next
        in_use = self.groups if self._taken else 0
        in_use += self._complete.count(rejected=plan.resample == "none")
        capacity = self.groups * (ahead + 1)
        overtaken = self._running.overtaken
        # At the end of the run, no group starts that no batch would take.
        batches_left = self.steps - self._step + 1
        room = min(capacity + overtaken, self.groups * batches_left)
        room -= in_use + len(self._running)
        if overtaken:
            # A group starts when all its episodes can: from its first token on, it ages.
            episodes = (capacity - in_use) * self.group_size - self._running.episodes
            room = min(room, episodes // self.group_size)
        if plan.resample != "none":
            tried = len(self._complete) + len(self._running)
            room = min(room, (ahead + plan.attempts) * self.groups - tried)
        return room

    def _places(self) -> int:
        """Return how many episodes may run at once: those of abandoned groups take no place of
        others.
        """
        return self.rollout_context.concurrency + self._running.abandoned_episodes

    def _start_admitted(self) -> None:
        """Start what the capacity admits while the learner has its batch; with a staleness of 0,
        nothing.
        """
        if self.saves_unfinished and self._task is not None and not self._task.done():
            self._runner.add(self._admit())

    def _choose(self, waiting: Sequence[tuple[RolloutRequest, int, int]]) -> int:
        position = self._order.choose(waiting) if self._order else 0
        request, _, _ = waiting[position]
        self._running.start(request.index, self._step)
        return position

    def _on_rollout(self, rollout: AnyRollout) -> None:
        self.screen.advance(rollout)
        if self._order is not None:
            self._order.observe(rollout)
        self._running.episode_ended(rollout.group)
        if self._running.is_overtaken(rollout.group):
            self._start_admitted()

    def _on_group(self, group: AnyGroup) -> Sequence[RolloutRequest]:
        """Keep a complete group; return the requests that it makes room for."""
        self._changed.set()
        # With "wait" nobody asks which groups are overtaken, since each has its place in a batch.
        overtakes = self.saves_unfinished and self.schedule.stale != "wait"
        request = self._running.remove(group.index, overtakes=overtakes)
        if request is None:
            self._wasted.append(group)
            return ()
        self._complete.add(self._complete_group(request, group, self.rejection(group)))
        if not self._running:
            self._idle.sampler_ends()
        if self.saves_unfinished or self.algorithm.plan.resample == "active":
            return self._admit()
        return ()

    def _complete_group(
        self, request: RolloutRequest, group: AnyGroup, reason: str
    ) -> CompleteGroup:
        versions: list[int] = []
        for _, _, sequences in trained([group]):
            for sequence in sequences:
                versions += [v for v in sequence.versions if v >= 0]
        oldest = min(versions, default=None)
        return CompleteGroup(request=request, group=group, reason=reason, oldest=oldest)

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
        abandoned = self._running.abandon_older(self._step - self.schedule.max_staleness)
        self._unrecorded += abandoned
        self._given_up += len(abandoned)

    # ---------------------------------------------------------------- batches
    def _batch(self) -> Collected | None:
        """Return the next batch, if it is complete or cannot become so."""
        plan, complete = self.algorithm.plan, self._complete
        every = plan.resample == "none"  # rejected groups take a place in the batch, too
        if not complete.valid:
            check_failures([c.group for c in complete], self.groups)
        spent = not every and len(complete) >= plan.attempts * self.groups
        if complete.count(rejected=every) < self.groups and not spent and self._running:
            return None
        waits = self.schedule.stale == "wait" and not spent and bool(self._running)
        started = self._running.started(self._step)
        if waits and self._would_be_stale(started):
            return None  # whatever else is complete
        usable = complete.usable(rejected=every)
        # Those that this batch has no place for wait for a later one, too.
        for later in usable[self.groups :]:
            started[self._step if later.oldest is None else later.oldest + 1] += 1
        if waits and self._would_be_stale(started):
            return None
        batch = {c.group.index for c in usable[: self.groups]}
        self._taken = complete.take(batch, {"stale"} if every else complete.reasons())
        cause = ""
        if len(batch) < self.groups:
            limit = f"{len(self._taken)} groups were tried, the limit of plan.attempts"
            cause = self._exhausted or limit
        wasted = self._wasted
        self._wasted = []
        return Collected(
            tried=tuple(c.group for c in self._taken),
            accepted=tuple(c.group for c in self._taken if not c.reason),
            rejected=Counter(c.reason for c in self._taken if c.reason),
            size=self.groups,
            cause=cause,
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
        measured = self._idle.measured()
        speed = sum(r.tokens for g in collected.tried for r in g.rollouts) / measured.seconds
        metrics = super().metrics(collected) | {
            "groups.retried": self._retried,
            "groups.abandoned": self._given_up,
            "queue.complete": len(self._complete),
            "queue.running": len(self._running),
            "idle.learner": measured.learner,
            "idle.sampler": measured.sampler,
            "throughput.tokens_per_second": speed,
            # The seconds of the rollouts are here those in which the learner waited; episodes run
            # all the time.
            "tokens_per_second": speed,
        }
        self._retried = 0
        self._given_up = 0
        return metrics | self._staleness(collected)

    def _staleness(self, collected: Collected) -> dict[str, float]:
        """Return the shares of the trained tokens by their age, and of the samples of several
        versions; empty without a token.
        """
        behind: Counter[int] = Counter()
        mixed: list[bool] = []  # of each sample
        for _, _, sequences in trained(collected.accepted):
            versions = Counter[int]()
            for sequence in sequences:
                versions.update(v for v in sequence.versions if v >= 0)
            mixed.append(len(versions) > 1)
            for version, count in versions.items():
                behind[self._version - version] += count
        total = behind.total()
        if not total:
            return {}
        shares = {
            f"staleness.share.{age}": behind[age] / total
            for age in range(self.schedule.max_staleness + 1)
        }
        return shares | {"staleness.mixed": sum(mixed) / len(mixed)}

    # ---------------------------------------------------------------- checkpoints
    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: complete groups with their rollouts, and the prompts
        of the others.
        """
        groups = [
            {
                **self._named(complete.request),
                "reason": complete.reason,
                "rollouts": [rollout.to_json() for rollout in complete.group.rollouts],
            }
            for complete in (*self._taken, *self._complete)
        ]
        prompts = [*self._again, *self._running, *self._unrecorded]
        prompts.sort(key=lambda request: request.index)
        return {
            "groups": groups,
            "prompts": [self._named(request) for request in prompts],
            "retried": self._retried,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`; results of environments are plain data then.

        Raises:
            RunError: an environment no longer has a task.
        """
        groups, prompts = state.get("groups", ()), state.get("prompts", ())
        tasks = self._tasks_of([*groups, *prompts])
        self._retried = state.get("retried", 0)
        for entry in groups:
            request = self._request(entry, tasks)
            kind = type(request.task)
            group = Group(
                task=request.task,
                rollouts=tuple(Rollout.from_json(r, kind) for r in entry["rollouts"]),
                environment=request.name,
                index=request.index,
            )
            self._complete.add(self._complete_group(request, group, entry["reason"]))
        self._again = [self._request(entry, tasks) for entry in prompts]

    def _tasks_of(self, entries: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], Any]:
        """Return the tasks that *entries* name, by environment and id.

        Raises:
            RunError: an environment no longer has a task.
        """
        tasks: dict[tuple[int, str], Any] = {}
        for index, name in enumerate(self.names):
            wanted = {entry["task"] for entry in entries if entry["environment"] == index}
            if not wanted:
                continue
            for task in self.curriculum.reader(index)():
                if task.id in wanted:
                    tasks[index, task.id] = task
                    wanted.discard(task.id)
                    if not wanted:
                        break  # a split may have no end
            if wanted:
                raise RunError(
                    f"environment {name!r} no longer yields the task {min(wanted)!r}, which was in "
                    "progress at the checkpoint; restore its original data, or start a new run "
                    "from its model"
                )
        return tasks

    def _request(
        self, entry: Mapping[str, Any], tasks: Mapping[tuple[int, str], Any]
    ) -> RolloutRequest:
        """Return the request that `_named` wrote as *entry*."""
        at = entry["environment"]
        return RolloutRequest(
            environment=self.environments[at],
            task=tasks[at, entry["task"]],
            group_size=self.group_size,
            name=self.names[at],
            index=entry["index"],
            visit=entry["visit"],
        )

    def _named(self, request: RolloutRequest) -> dict[str, Any]:
        """Return plain data of *request*, with its task and environment by name."""
        # By identity: two environments of a run may be equal.
        places = [i for i, e in enumerate(self.environments) if e is request.environment]
        return {
            "environment": places[0],
            "task": request.task.id,
            "index": request.index,
            "visit": request.visit,
        }
