"""Keeps the replicas of a pool alive: looks after them, starts them again, adds and removes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from quintain import InfrastructureError, TokenEngine, Weights
from quintain.errors import RunError, UsageError
from quintain.interfaces import changes_of
from quintain.store import RunFolder

from .admission import TurnLimit
from .health import COMING, ENDED, UP, ReplicaHealth, ReplicaState, RestartPolicy
from .routing import Router

_log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""Between two looks at each replica."""
ANSWER_SECONDS = 10.0
"""That a replica may take to answer a look."""


class ReplicaSupervisor:
    """The replicas of a pool, their states, and the tasks that bring them back.

    A dead replica is closed and made anew. It loads no weights of the learner's then, which may be
    changing: it is stale until it has taken the weights of now. These are sent as soon as the
    learner has them unchanged in its hands, else with the next update.

    Args:
        make: returns the replica of a number, not started.
        router: of their turns.
        replicas: to begin with, not started.
        policy: of restarts.
        bounds: of the number of replicas.
        admits: the engine's own counters limit the turns of a replica.

    Attributes:
        replicas, health: by number; a removed replica keeps its number until another takes it.
        updating: held while weights are sent.
        began: `start` was called, and not `stop`.
    """

    def __init__(
        self,
        make: Callable[[int], TokenEngine],
        router: Router,
        replicas: Mapping[int, TokenEngine],
        *,
        policy: RestartPolicy,
        bounds: tuple[int, int | None],
        admits: bool = False,
    ) -> None:
        self._make, self.router = make, router
        self.replicas = dict(replicas)
        self._policy, self._bounds, self._admits = policy, bounds, admits
        self.health = [ReplicaHealth(policy=policy) for _ in self.replicas]
        self.updating, self.began = asyncio.Lock(), False
        self._entered: set[int] = set()
        self._admissions: dict[int, TurnLimit] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._looks: dict[int, asyncio.Task[str]] = {}  # by the `id` of a replica
        self._watching: set[asyncio.Task[None]] = set()
        self._published: tuple[Weights, tuple[int, ...]] | None = None
        self._folder: RunFolder | None = None
        self._unwritten: deque[dict[str, Any]] = deque()

    # -- begin and end

    async def start(self) -> None:
        """Start all replicas, and look after them from then on.

        Raises:
            Exception: what the first one that does not start raises; the others are closed, as they
                are if the start is cancelled.
        """
        try:
            async with asyncio.TaskGroup() as starting:
                for number, replica in self.replicas.items():
                    starting.create_task(self._enter(number, replica))
        except BaseException as failed:
            await self.stop()
            if isinstance(failed, BaseExceptionGroup):
                raise failed.exceptions[0] from failed
            raise
        self.began = True
        for number, replica in self.replicas.items():
            self.router.take(number, replica.version)
            self._admit(number)
            self._watch(number)

    async def stop(self) -> None:
        """End what runs, and close all replicas.

        Raises:
            Exception: what the first one that does not close raises.
        """
        self.began = False
        tasks = [*self._tasks.values(), *self._looks.values(), *self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [self._close(number) for number in sorted(self._entered)]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _enter(self, number: int, replica: TokenEngine) -> None:
        await replica.__aenter__()
        self._entered.add(number)

    async def _close(self, number: int) -> None:
        if number not in self._entered:
            return
        self._entered.discard(number)
        closing = asyncio.ensure_future(self.replicas[number].__aexit__(None, None, None))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:  # nobody else closes it
            await closing
            raise

    # -- what replicas show

    def up(self) -> list[int]:
        """Return the numbers of the replicas that run, which an update is sent to."""
        return [n for n, health in enumerate(self.health) if health.state in UP]

    def is_up(self, number: int, replica: TokenEngine) -> bool:
        """Return whether *replica* still runs; dead ones are made anew under their *number*."""
        return replica is self.replicas[number] and self.health[number].state in UP

    async def suspect(self, number: int, replica: TokenEngine, error: InfrastructureError) -> None:
        """Take note that a call of *replica* failed with *error*; returns when it is clear whether
        it lives.
        """
        if not (self.began and self.is_up(number, replica)):
            return
        key = id(replica)
        if key not in self._looks:  # turns that fail together share one
            self._looks[key] = asyncio.create_task(self._look(replica))
            self._looks[key].add_done_callback(lambda _: self._looks.pop(key, None))
        fault = await asyncio.shield(self._looks[key])
        if fault:
            why = f"{error}; then: {fault}" if fault not in str(error) else fault
            self.bury(number, replica, why)
        elif self.is_up(number, replica) and self.health[number].failed(_now(), "turn", str(error)):
            self._died(number)

    def bury(self, number: int, replica: TokenEngine, why: str) -> None:
        """Take note that *replica* is dead, and bring it back."""
        if self.is_up(number, replica):
            self.health[number].died(_now(), why)
            self._died(number)

    def _died(self, number: int) -> None:
        health = self.health[number]
        self._note(number)
        self.router.lose(number, health.why, coming=health.state in COMING)
        self._tend(number)

    def _watch(self, number: int) -> None:
        """Look at the replica *number* from now on, as long as it runs."""
        watching = self._watched(number, self.replicas[number], self.health[number])
        task = asyncio.create_task(watching, name=f"quintain-replica-{number}")
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watched(self, number: int, replica: TokenEngine, health: ReplicaHealth) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            fault = await self._look(replica)
            if not self.is_up(number, replica):
                return
            if not fault:
                health.succeeded("probe")
                await self._measure(number, replica)
            elif health.failed(_now(), "probe", fault):
                self._died(number)

    async def _look(self, replica: TokenEngine) -> str:
        """Return what is wrong with *replica*; empty if nothing is."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await replica.probe()
        except TimeoutError:
            return f"no answer to a probe for {ANSWER_SECONDS:g} s"
        except Exception as error:  # noqa: BLE001 -- whatever it is, the replica is not well
            return str(error) or type(error).__name__
        return ""

    async def _measure(self, number: int, replica: TokenEngine) -> None:
        """Move the limit of *replica* by what it says of itself; there is none while it says
        nothing.
        """
        admission = self._admissions.get(number)
        if admission is None:
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                pressure = await replica.pressure()
        except Exception as error:  # noqa: BLE001 -- it answers probes: the limit stays
            _log.info("replica %d does not say how busy it is: %s", number, error)
            return
        if not self.is_up(number, replica):
            return
        if pressure is not None:
            admission.observe(pressure, self.router.loads[number])
        self.router.limit(number, None if pressure is None else admission.limit)

    def _admit(self, number: int) -> None:
        if self._admits:
            self._admissions[number] = TurnLimit(self.router.slots)
            self.router.limit(number, self._admissions[number].limit)

    # -- bringing replicas back

    def _tend(self, number: int) -> None:
        """See that a task leads the replica *number* to a state in which it may stay."""
        if self.began and (number not in self._tasks or self._tasks[number].done()):
            self._tasks[number] = asyncio.create_task(self._tended(number))

    async def _tended(self, number: int) -> None:
        health = self.health[number]
        while health.state not in (ReplicaState.HEALTHY, *ENDED):
            steps: dict[ReplicaState, Callable[[int], Coroutine[Any, Any, None]]] = {
                ReplicaState.DEAD: self._restart,
                ReplicaState.STALE: self._refresh,
                ReplicaState.LEAVING: self._drain,
            }
            await steps[health.state](number)
        if health.state in ENDED:
            with suppress(Exception):  # what ended it is in the log
                await self._close(number)

    async def _restart(self, number: int) -> None:
        """Put a new replica into the place of a dead one, once it is time to try again."""
        health = self.health[number]
        # The time-out is the end of the wait. It ends earlier if the replica is removed meanwhile.
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, health.retry_at - _now())):
                await self.router.until(lambda: health.state != ReplicaState.DEAD)
        if health.state != ReplicaState.DEAD:
            return
        health.restarting()
        self._note(number)
        with suppress(Exception):  # it is dead; what it holds is taken from it as far as possible
            await self._close(number)
        try:
            replica = self._make(number)
            # Before the first update nobody sends it weights: it loads those that the others did.
            replica.awaits_weights = self._published is not None
            await replica.__aenter__()
        except Exception as error:  # noqa: BLE001 -- each is a reason to try again later
            health.died(_now(), f"it does not start: {error}")
            self._died(number)
            return
        self.replicas[number] = replica
        self._entered.add(number)
        if self.health[number].state == ReplicaState.RESTARTING:  # not removed meanwhile
            health.came_up()
            self._note(number)
            self._watch(number)

    async def _refresh(self, number: int) -> None:
        """Send the weights of now to a stale replica, or wait until an update has done so."""
        health, replica = self.health[number], self.replicas[number]
        async with self.updating:
            if health.state != ReplicaState.STALE:
                return
            published = self._published
            if published is None:  # never updated: it has what it was made with
                self.healthy(number, self.router.version)
                return
            if self._unchanged():
                try:
                    version = await replica.update(published[0])
                except Exception as error:  # noqa: BLE001 -- others have these weights and work
                    why = f"it does not take the weights of now: {error}"
                    self.bury(number, replica, why)
                    return
                if health.state != ReplicaState.STALE:  # it died or was removed meanwhile
                    return
                if self._unchanged():
                    self.healthy(number, version)
                    return
        await self.router.until(
            lambda: health.state != ReplicaState.STALE or self._published is not published
        )

    async def _drain(self, number: int) -> None:
        health = self.health[number]
        await self.router.until(
            lambda: health.state != ReplicaState.LEAVING or self.router.is_empty(number)
        )
        if health.state == ReplicaState.LEAVING:
            async with self.updating:
                health.ended()
            self._note(number)

    # -- weights

    def publish(self, weights: Weights) -> None:
        """Take note of the weights that replicas have to have from now on."""
        self._published = weights, changes_of(weights)

    def _unchanged(self) -> bool:
        """Return whether what was published is still what the learner has."""
        assert self._published is not None
        weights, changes = self._published
        return changes_of(weights) == changes

    def missed(self, number: int, replica: TokenEngine, why: str) -> None:
        """Take note that *replica* did not take the weights of an update."""
        if self.began:
            self.bury(number, replica, why)
        else:  # nobody brings it back; a later update may reach it
            _log.warning("replica %d is left out until it has new weights: %s", number, why)
            self.router.lose(number, why)

    def healthy(self, number: int, version: int) -> None:
        """Take note that the replica *number*, which is up, has the weights of now, of *version*."""
        health = self.health[number]
        was = health.state
        health.took_weights()
        self.router.take(number, version)
        if was == ReplicaState.STALE:
            self._admit(number)
            self._note(number)

    # -- adding and removing

    def resize(self, count: int) -> None:
        """Add or remove replicas until there are *count*. Removed ones end their turns; those that
        do not work go first.

        Raises:
            UsageError: *count* is outside of the bounds, or nothing runs.
        """
        least, most = self._bounds
        if count < least or (most is not None and count > most):
            upper = "any number" if most is None else most
            raise UsageError(f"{count} replicas; the recipe allows {least} to {upper}")
        if not self.began:
            raise UsageError("the pool has not started, or has ended")
        gone = (*ENDED, ReplicaState.LEAVING)
        while len(there := [n for n, h in enumerate(self.health) if h.state not in gone]) > count:
            ranks = [ReplicaState.HEALTHY, ReplicaState.STALE]
            self._remove(
                max(
                    there,
                    key=lambda n: (
                        self.health[n].state not in ranks,
                        self.health[n].state != ReplicaState.HEALTHY,
                        -self.router.loads[n],
                        n,
                    ),
                )
            )
        for _ in range(count - len(there)):
            self._add()

    def _remove(self, number: int) -> None:
        self.health[number].leaves()
        self.router.leave(number)
        self._note(number)
        self._tend(number)

    def _add(self) -> None:
        free = [
            n
            for n, health in enumerate(self.health)
            if health.state in ENDED and (n not in self._tasks or self._tasks[n].done())
        ]
        number = free[0] if free else len(self.health)
        health = ReplicaHealth(policy=self._policy, state=ReplicaState.DEAD, why="added")
        self.health[number : number + 1] = [health]
        self.router.join(number)
        self._note(number)
        self._tend(number)

    # -- the log

    def log_to(self, folder: RunFolder) -> None:
        """Write the state of each replica, and each change from now on, into *folder* of a run.

        Replicas that an earlier process of the run had beside these are noted as removed.
        """
        self._folder = folder
        earlier: set[int] = set()
        try:
            earlier = {record["replica"] for record in folder.replicas()}
        except (OSError, RunError) as error:
            _log.warning("what happened to replicas before is not read: %s", error)
        for number, health in enumerate(self.health):
            self._record(number, health.state, health.why)
        for number in sorted(earlier - {*range(len(self.health))}):
            self._record(number, ReplicaState.REMOVED, "the run was started again")

    def alert(self) -> str:
        """Return what a person should know of replicas that will not come back; empty if all
        work or are coming.
        """
        lost = [
            f"replica {n}: {health.why}"
            for n, health in enumerate(self.health)
            if health.state == ReplicaState.GIVEN_UP
        ]
        if not lost:
            return ""
        working = sum(health.state == ReplicaState.HEALTHY for health in self.health)
        gone = (*ENDED, ReplicaState.LEAVING)
        wanted = len(lost) + sum(health.state not in gone for health in self.health)
        return (
            f"replicas: {len(lost)} given up after {self._policy.restarts} restarts in "
            f"{self._policy.window / 60:g} minutes, {working} work. {'; '.join(lost)}. Mend the "
            f"cause, then set their number again: quintain steer RUN replicas {wanted}"
        )

    def _note(self, number: int) -> None:
        health = self.health[number]
        ill = health.state in (ReplicaState.DEAD, ReplicaState.GIVEN_UP)
        level = logging.WARNING if ill else logging.INFO
        _log.log(level, "replica %d is %s: %s", number, health.state, health.why or "it works")
        self._record(number, health.state, health.why)

    def _record(self, number: int, state: ReplicaState, why: str) -> None:
        """Write a line of the log, after those that could not be written before. Replicas are
        looked after whether or not it can be.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._unwritten.append({"time": now, "replica": number, "state": str(state), "why": why})
        try:
            while self._folder is not None and self._unwritten:
                self._folder.append(self._unwritten[0], self._folder.replicas_path)
                self._unwritten.popleft()
        except (OSError, RunError) as error:
            _log.warning("the state of replica %d is not written yet: %s", number, error)


def _now() -> float:
    return asyncio.get_running_loop().time()
