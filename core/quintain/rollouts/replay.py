"""Episodes of the present step played once more, for pieces that compare what was said with what might have been.

A run gives it to its pieces as the service ``replay``::

    @advantage
    async def greedy(step: Step, *, engine: TokenEngine = need("policy"), replay: Replay = need()) -> list[float]:
        ...

A piece brings an engine of its own that says what it wants to see said; the environment, its tools and its rewards run
as they did the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import UsageError
from ..interfaces.engine import Engine
from ..interfaces.environment import Environment
from ..interfaces.reward import Context
from ..types.rollout import Rollout
from .runner import Job, Setting, run_episode
from .scoring import score_rollout

AnyRollout = Rollout[Any, Any]


class Replay(Protocol):
    """What a piece asks for with ``replay: Replay = need()``."""

    async def __call__(self, wanted: Sequence[tuple[int, Engine]]) -> list[AnyRollout]:
        """Play samples of the step's batch again, each with an engine, and score them; in order.

        The episode has the seed of the first time, so its environment draws the same; the engine decides what else
        differs. A rollout that failed through our fault is not `valid`, as ever, and was retried before.

        Raises:
            UsageError: the episode had several seats, or its reward compares the members of a group.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class _Again(Setting):
    """The setting of an episode that has its seed already."""

    known: int

    def seed(self, task: Any, member: int, visit: int = 0) -> int:
        return self.known


@dataclass(kw_only=True)
class Replays:
    """The run's `Replay`.

    Attributes:
        environments: by the name that rollouts carry; ``None`` where two of a recipe share it.
    """

    environments: Mapping[str, Environment[Any, Any] | None] = field(default_factory=dict)
    _played: Sequence[AnyRollout] = ()
    _setting: Setting | None = None

    def take(self, played: Sequence[AnyRollout], setting: Setting) -> None:
        """Learn of a step's batch: the rollout of each sample, and what its episodes shared."""
        self._played, self._setting = tuple(played), setting

    async def __call__(self, wanted: Sequence[tuple[int, Engine]]) -> list[AnyRollout]:
        setting = self._setting
        if setting is None:
            raise UsageError("there is no batch yet whose episodes could be played again")
        jobs = [self._job(self._played[sample]) for sample, _ in wanted]
        queue = iter(range(len(wanted)))
        done: dict[int, AnyRollout] = {}
        context = Context(step=setting.step, services=setting.services)

        async def judge(i: int, rollout: AnyRollout) -> None:
            done[i] = await score_rollout(jobs[i].environment, rollout, context, setting.retries)

        async def play(tasks: asyncio.TaskGroup) -> None:
            with setting.engine.attend():  # as in run_groups: rewards run beside, who is alive does not depend on them
                for i in queue:
                    sample, engine = wanted[i]
                    rollout = await _retried(jobs[i], self._played[sample], engine, setting)
                    tasks.create_task(judge(i, rollout))

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(setting.concurrency, len(wanted))):
                    tasks.create_task(play(tasks))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [done[i] for i in range(len(wanted))]

    def _job(self, rollout: AnyRollout) -> Job:
        environment = self.environments.get(rollout.environment)
        who = f"an episode of {rollout.environment!r} cannot be played again"
        if environment is None:
            raise UsageError(f"{who}: the recipe has several environments of this name")
        if set(rollout.transcripts) != {""}:
            raise UsageError(f"{who}: it has the seats {sorted(rollout.transcripts)}; expected the policy's own alone")
        grouped = [r.name for r in (environment.reward, environment.shaping) if r is not None and r.group]
        if grouped:
            raise UsageError(f"{who}: {grouped[0]} compares the members of a group, and a replay has no group")
        return Job(environment=environment, task=rollout.task, members=1, name=rollout.environment, index=rollout.group)


def named(
    names: Sequence[str], environments: Sequence[Environment[Any, Any]]
) -> dict[str, Environment[Any, Any] | None]:
    """For `Replays.environments`."""
    found: dict[str, Environment[Any, Any] | None] = {}
    for name, environment in zip(names, environments, strict=True):
        found[name] = None if name in found else environment
    return found


async def _retried(job: Job, first: AnyRollout, engine: Engine, setting: Setting) -> AnyRollout:
    again = _Again(
        engine=engine,
        how=setting.how,
        services=setting.services,
        run_seed=setting.run_seed,
        step=setting.step,
        known=first.seed,
    )
    attempt = 1
    while True:
        rollout = await run_episode(job, first.member, again, attempt)
        if rollout.valid or attempt > setting.retries:
            return rollout
        attempt += 1
