"""Running episodes: one, or many groups at once, bounded, retried, reproducible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .engine import Engine, Sampling
from .environment import Environment
from .errors import EnvironmentFault, EpisodeTimeout, InfrastructureError, LimitReached, PolicyFault, UsageError
from .reward import Context
from .rollout import Ending, EndingKind, Group, Rollout
from .scoring import score_group, score_rollout
from .session import Ledger, Session, derived_seed
from .task import Task


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task to be tried by *members* rollouts.

    Attributes:
        index: of the group, counted from the start of the run.
        visit: how often this task came up before, so that a second visit draws other samples.
    """

    environment: Environment[Any, Any]
    task: Task
    members: int
    name: str = ""
    index: int = 0
    visit: int = 0
    system: str = ""


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
    seed = setting.seed(task, member, job.visit)
    engine = setting.engine.for_task(environment, task)
    ledger = Ledger(engine=engine, how=setting.how, limits=environment.limits, seed=seed)
    session = Session(ledger)
    _open(session, job)
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


def _open(session: Session, job: Job) -> None:
    system = job.system or job.environment.system
    prompt = job.task.prompt
    if system and (isinstance(prompt, str) or not any(m.role == "system" for m in prompt)):
        session.system(system)


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
    return str(error) if isinstance(error, EnvironmentFault) else f"{type(error).__name__}: {error}"


def _check_evidence(evidence: Any) -> None:
    """Evidence must survive being stored.

    Raises:
        EnvironmentFault: it does not come back equal from JSON.
    """
    if evidence is None or isinstance(evidence, (str, int, bool)):
        return
    try:
        adapter = _adapter(type(evidence))
        back = adapter.validate_json(adapter.dump_json(evidence))
    except Exception as e:
        raise EnvironmentFault(f"the evidence ({type(evidence).__name__}) is not plain data: {e}") from e
    if back != evidence:
        raise EnvironmentFault(
            f"the evidence ({type(evidence).__name__}) changes when stored: {evidence!r} became {back!r}"
        )


_ADAPTERS: dict[type, Any] = {}


def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


async def run_groups(
    jobs: Sequence[Job], setting: Setting, on_rollout: Callable[[Rollout[Any, Any]], None] | None = None
) -> list[Group[Any, Any]]:
    """Run and score all groups; in the order of *jobs*, whatever finished first.

    ``setting.concurrency`` players take the episodes in order. A player counts as alive for the engine until no
    episode is left, and rewards run beside it, so that what is sampled beside what never depends on how long a tool or
    a reward takes.

    Raises:
        UsageError: what no retry can mend, such as a reward whose service is missing.
    """
    queue = iter([(j, m) for j, job in enumerate(jobs) for m in range(job.members)])
    done: list[dict[int, Rollout[Any, Any]]] = [{} for _ in jobs]
    context = Context(step=setting.step, services=setting.services)

    async def judge(j: int, rollout: Rollout[Any, Any]) -> None:
        rollout = await score_rollout(jobs[j].environment, rollout, context, setting.retries)
        done[j][rollout.member] = rollout
        if on_rollout is not None:
            on_rollout(rollout)

    async def play(tasks: asyncio.TaskGroup) -> None:
        with setting.engine.attend():
            for j, member in queue:
                rollout = await _retried(jobs[j], member, setting)
                tasks.create_task(judge(j, rollout))

    players = min(setting.concurrency, sum(job.members for job in jobs))
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(players):
                tasks.create_task(play(tasks))
    except BaseExceptionGroup as failed:
        raise _first(failed) from failed
    groups = [
        Group(
            task=job.task, rollouts=tuple(done[j][m] for m in range(job.members)), environment=job.name, index=job.index
        )
        for j, job in enumerate(jobs)
    ]
    scored = [score_group(j.environment, g, context, setting.retries) for j, g in zip(jobs, groups, strict=True)]
    return list(await asyncio.gather(*scored))


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
