"""Running episodes: one, or many groups at once, bounded, retried, reproducible."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EnvironmentFault, EpisodeTimeout, InfrastructureError, LimitReached, PolicyFault, UsageError
from ..interfaces.engine import Engine
from ..interfaces.environment import Environment
from ..interfaces.reward import Context
from ..tracebacks import said_by
from ..types.rollout import Ending, EndingKind, Group, Rollout, type_adapter
from ..types.sampling import Sampling, derived_seed
from ..types.task import Task
from .scoring import score_group, score_rollout
from .session import Ledger, Session


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task to be tried by *members* rollouts.

    Attributes:
        index: of the group, counted from the start of the run.
        visit: how often this task came up before, so that a second visit draws other samples.
        system: the system message, in place of the environment's.
        engine: samples these episodes instead of the context's engine.
        seed: of every episode, where it is known already (an episode that is run again).
    """

    environment: Environment[Any, Any]
    task: Task
    members: int
    name: str = ""
    index: int = 0
    visit: int = 0
    system: str = ""
    engine: Engine | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all episodes of a batch share."""

    engine: Engine
    how: Sampling = field(default_factory=Sampling)
    services: Mapping[str, Any] = field(default_factory=dict)
    run_seed: int = 0
    step: int = 0
    concurrency: int = 256
    retries: int = 1

    def seed(self, task: Task, member: int, visit: int = 0) -> int:
        """The seed of a rollout: it depends on (run, task, visit, member) alone."""
        return derived_seed(self.run_seed, task.id, visit, member)


async def run_episode(job: Job, member: int, setting: Setting, attempt: int = 1) -> Rollout[Any, Any]:
    """One try of one episode, not scored. Every failure becomes an ending; only cancellation passes through."""
    environment, task = job.environment, job.task
    seed = setting.seed(task, member, job.visit) if job.seed is None else job.seed
    engine = (job.engine or setting.engine).for_task(task)
    ledger = Ledger(engine=engine, how=setting.how, limits=environment.limits, seed=seed)
    session = Session(ledger)
    system, prompt = job.system or environment.system, task.prompt
    if system and (isinstance(prompt, str) or not any(m.role == "system" for m in prompt)):
        session.system(system)
    start = time.monotonic()
    evidence, ending = await _played(environment, task, session, ledger)
    own = ledger.seats[""]
    return Rollout(
        task=task,
        evidence=evidence,
        ending=Ending(ending.kind, ending.reason, attempt, ending.early),
        metrics=dict(ledger.metrics),
        turns=tuple(ledger.turns),
        messages=tuple(own.messages),
        transcripts=ledger.transcripts(),
        environment=job.name,
        group=job.index,
        member=member,
        seed=seed,
        seconds=time.monotonic() - start,
    )


async def _played(
    environment: Environment[Any, Any], task: Task, session: Session, ledger: Ledger
) -> tuple[Any, Ending]:
    try:
        async with asyncio.timeout(environment.limits.seconds) as clock:
            evidence = await environment.rollout(task, session)
            _check_evidence(evidence)
    except LimitReached as e:
        return None, Ending(EndingKind.TRUNCATED, e.limit, early=True)
    except PolicyFault as e:
        return None, Ending(EndingKind.POLICY_FAULT, str(e), early=True)
    except InfrastructureError as e:
        return None, Ending(EndingKind.INFRASTRUCTURE_ERROR, str(e))
    except UsageError:
        raise
    except TimeoutError as e:
        if isinstance(e, EpisodeTimeout) or clock.expired():
            return None, Ending(EndingKind.TIMEOUT, f"over {environment.limits.seconds} s")
        return None, Ending(EndingKind.ENVIRONMENT_ERROR, _said(e))
    except Exception as e:  # noqa: BLE001 - an author's code may raise anything; it becomes the ending
        return None, Ending(EndingKind.ENVIRONMENT_ERROR, _said(e))
    if ledger.hit:
        return evidence, Ending(EndingKind.TRUNCATED, ledger.hit)
    return evidence, Ending()


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, EnvironmentFault) else said_by(error)


def _check_evidence(evidence: Any) -> None:
    """Evidence must survive being stored.

    Raises:
        EnvironmentFault: it does not come back equal from JSON.
    """
    if evidence is None or isinstance(evidence, (str, int, bool)):
        return
    try:
        kind: Any = type(evidence)
        adapter = type_adapter(kind)
        back = adapter.validate_json(adapter.dump_json(evidence))
    except Exception as e:
        raise EnvironmentFault(f"the evidence ({type(evidence).__name__}) is not plain data: {e}") from e
    if back != evidence:
        raise EnvironmentFault(
            f"the evidence ({type(evidence).__name__}) changes when stored: {evidence!r} became {back!r}"
        )


More = Callable[[Group[Any, Any]], Sequence[Job]]


async def run_groups(
    jobs: Sequence[Job],
    setting: Setting,
    on_rollout: Callable[[Rollout[Any, Any]], None] | None = None,
    more: More | None = None,
) -> list[Group[Any, Any]]:
    """Run and score all groups; return them in the order of *jobs*, whatever finished first.

    ``setting.concurrency`` workers take the episodes in order. A worker is registered with the engine until no episode
    is left, and rewards run beside it, so what is decoded together never depends on how long a tool or a reward takes.

    Args:
        on_rollout: called with every rollout as it is scored.
        more: called with every group as soon as it is complete and scored; the jobs that it returns run after those
            that wait. Workers then score their episodes themselves before they take the next one: a reproducible
            engine samples nothing meanwhile, so a new group starts at the same token whatever a reward takes.

    Raises:
        UsageError: what no retry can repair, such as a reward whose service is missing.
    """
    return await RolloutRunner(jobs, setting, on_rollout, more).run()


class RolloutRunner:
    """Runs the episodes of one call of `run_groups`."""

    def __init__(
        self,
        jobs: Sequence[Job],
        setting: Setting,
        on_rollout: Callable[[Rollout[Any, Any]], None] | None,
        more: More | None,
    ) -> None:
        self._setting, self._on_rollout, self._more = setting, on_rollout, more
        self._context = Context(step=setting.step, services=setting.services)
        self._jobs: list[Job] = []
        self._scored: list[dict[int, Rollout[Any, Any]]] = []  # per job, by the index within the group
        self._groups: dict[int, Group[Any, Any]] = {}  # complete ones, where `more` asked for them
        self._queue: deque[tuple[int, int]] = deque()  # (job, index within the group) of the episodes that wait
        self._workers = 0
        self._add(jobs)

    async def run(self) -> list[Group[Any, Any]]:
        """Run every job to its end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._start_workers(tasks)
        except BaseExceptionGroup as failed:
            raise _first(failed) from failed
        if self._more is not None:
            return [self._groups[j] for j in range(len(self._jobs))]
        return list(await asyncio.gather(*(self._complete(j) for j in range(len(self._jobs)))))

    def _add(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._queue.extend((len(self._jobs), index) for index in range(job.members))
            self._jobs.append(job)
            self._scored.append({})

    def _start_workers(self, tasks: asyncio.TaskGroup, spare: int = 0) -> None:
        """Start workers for the episodes that wait, but for *spare* of them."""
        for _ in range(min(len(self._queue) - spare, self._setting.concurrency - self._workers)):
            self._workers += 1
            tasks.create_task(self._work(tasks))

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        # The engine steps only when every registered worker waits on it. So a worker stays registered between two
        # episodes: else the engine would see one fewer for a time that depends on the machine.
        with self._setting.engine.attend():
            while self._queue:
                j, index = self._queue.popleft()
                rollout = await _retried(self._jobs[j], index, self._setting)
                if self._more is None:
                    tasks.create_task(self._score(j, rollout))
                    continue
                await self._score(j, rollout)
                if len(self._scored[j]) == self._jobs[j].members:
                    await self._follow(j, tasks, self._more)
            self._workers -= 1

    async def _score(self, j: int, rollout: Rollout[Any, Any]) -> None:
        rollout = await score_rollout(self._jobs[j].environment, rollout, self._context, self._setting.retries)
        self._scored[j][rollout.member] = rollout
        if self._on_rollout is not None:
            self._on_rollout(rollout)

    async def _follow(self, j: int, tasks: asyncio.TaskGroup, more: More) -> None:
        """Hand the complete group to *more* and queue the jobs it asks for."""
        group = self._groups[j] = await self._complete(j)
        jobs = more(group)
        if jobs:
            self._add(jobs)
            self._start_workers(tasks, spare=1)  # this worker takes one episode itself
            await asyncio.sleep(0)  # the new workers register before this one asks the engine for anything

    async def _complete(self, j: int) -> Group[Any, Any]:
        job, scored = self._jobs[j], self._scored[j]
        rollouts = tuple(scored[index] for index in range(job.members))
        group = Group(task=job.task, rollouts=rollouts, environment=job.name, index=job.index)
        return await score_group(job.environment, group, self._context, self._setting.retries)


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    error = failed.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _retried(job: Job, member: int, setting: Setting) -> Rollout[Any, Any]:
    attempt = 1
    while True:
        rollout = await run_episode(job, member, setting, attempt)
        if rollout.valid or attempt > setting.retries:
            return rollout
        attempt += 1
