"""The audit of an environment's tasks: what each gives without a model, task by task, in a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from quintain import Engine, Environment, Message, Reply, Rollout, Sampling, Task
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain.types import content_hash

from .controls import ControlEngine
from .guard import Stuck
from .scripted import Script, ScriptedEngine
from .task_record import TaskRecord

CONSTANTS = ("I do not know.", "0", "1", "True", "False", "yes", "no", "A")
COMMON = 2
"""Answers that most tasks have, which are tried on all of them, too."""
OTHERS = 8
"""Tasks that are looked at for a solution that is another one."""
SEED = 0
NOT_AGAIN = ("oracle", "nop")
BLOCKS = "a call does not return"
MAX_TOKENS = 65_536
"""Of a turn: more than any reply that is tried."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The tasks of an audit, and what is done with each.

    Attributes:
        name: of the environment.
        build: makes the environment from started services.
        services: starts them.
        tasks: by their ids, in the order of the split.
        groups: what the summary counts a task under, by id.
        repeats: runs of the solution.
        args: the environment's arguments, which are part of a record's digest.
        code: a hash of what plays and scores, which is, too.
        seconds: of one episode, or of all runs of a solution.
    """

    name: str
    build: Callable[[Mapping[str, Any]], Environment[Any, Any]]
    services: Callable[[], AbstractAsyncContextManager[Mapping[str, Any]]]
    tasks: Mapping[str, Task]
    groups: Mapping[str, str]
    repeats: int
    args: Mapping[str, Any]
    code: str
    seconds: float

    @cached_property
    def constants(self) -> dict[str, tuple[str, ...]]:
        """Replies that do not look at the task, by group; the commonest answers are among them."""
        answers: dict[str, Counter[str]] = {group: Counter() for group in self.groups.values()}
        for task in self.tasks.values():
            if task.answer is not None:
                answers[self.groups[task.id]][str(task.answer)] += 1
        return {
            group: tuple(dict.fromkeys([*CONSTANTS, *(a for a, _ in known.most_common(COMMON))]))
            for group, known in answers.items()
        }

    def digest(self, task: Task) -> str:
        """Return a hash of the task, of the environment's arguments and code, and of the number of
        runs.
        """
        settings = json.dumps([self.args, self.code, self.repeats], default=str)
        return hashlib.sha256((content_hash(task) + settings).encode()).hexdigest()[:16]


def audit(
    audited: Audited,
    known: Mapping[str, TaskRecord],
    write: Callable[[TaskRecord], None],
    *,
    jobs: int,
) -> None:
    """Try all tasks that have no record in *known*, or have changed since; *jobs* at one time.

    Args:
        write: called with each record, as soon as it is there.
    """
    done: set[str] = set()
    left = [
        task
        for task in audited.tasks.values()
        if task.id not in known or known[task.id].digest != audited.digest(task)
    ]
    # A solution that does not return would end the audit of each task that it is tried on.
    blocking = {
        task.id
        for task in audited.tasks.values()
        if task.id in known and task not in left and BLOCKS in known[task.id].defects
    }

    def keep(record: TaskRecord) -> None:
        done.add(record.task)
        write(record)

    while left := [task for task in left if task.id not in done]:
        playing: list[Task] = []
        others = [task for task in audited.tasks.values() if task.id not in blocking]
        try:
            asyncio.run(_audit(audited, left, others, keep, jobs, playing))
        except Stuck as e:
            if not playing:
                raise UsageError(f"{audited.name}: {e}") from e
            if jobs == 1:
                task = playing[-1]
                blocking.add(task.id)
                record = _record(audited, task)
                record.found(BLOCKS, str(e))
                keep(record)
            jobs = 1  # one by one, so that the task at fault is known


async def _audit(
    audited: Audited,
    left: Sequence[Task],
    others: Sequence[Task],
    keep: Callable[[TaskRecord], None],
    jobs: int,
    playing: list[Task],
) -> None:
    number = {task.id: i for i, task in enumerate(others)}
    waiting = iter(left)
    async with audited.services() as services:
        player = Player(audited, audited.build(services), services, playing)

        async def work() -> None:
            for task in waiting:
                at = number[task.id] + 1
                keep(await player.examined(task, [*others[at:], *others[: at - 1]][:OTHERS]))

        await asyncio.gather(*(work() for _ in range(min(jobs, len(left)))))
        playing.clear()


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What came of the environment's oracle on a task, over all runs.

    Attributes:
        rewards: of the runs; ``None`` for one that failed.
        replies: of the policy in the first run, turn by turn.
        reason: why the first run failed; empty if it did not.
        seconds: of the longest run.
    """

    rewards: list[float | None]
    replies: list[str | Reply]
    reason: str
    seconds: float


class Player:
    """Plays tasks of one environment by scripts.

    Args:
        playing: gets each task whose episodes begin, one of another task's solution too.
    """

    def __init__(
        self,
        audited: Audited,
        environment: Environment[Any, Any],
        services: Mapping[str, Any],
        playing: list[Task],
    ) -> None:
        self._audited, self._environment, self._services = audited, environment, services
        self._playing = playing
        self._marks = environment.control_marks()
        self._solutions: dict[str, asyncio.Future[Solution]] = {}
        self._memory_mib: defaultdict[str, float] = defaultdict(float)

    async def examined(self, task: Task, others: Sequence[Task]) -> TaskRecord:
        """Return the record of *task*; the solution of one of *others* is tried on it, too."""
        record = _record(self._audited, task)
        try:
            await self._try_all(record, task, others)
        except UsageError as e:  # no other task need have the same fault
            record.found("it cannot be played", str(e))
        except TimeoutError:  # its other episodes would take as long
            record.found("an episode does not end", f"none within {self._audited.seconds:g} s")
        record.memory_mib = round(self._memory_mib[task.id], 1)
        record.judge(self._marks)
        return record

    async def _try_all(self, record: TaskRecord, task: Task, others: Sequence[Task]) -> None:
        solution = await self._solution(task)
        record.seconds = solution.seconds
        known = [value for value in solution.rewards if value is not None]
        if self._marks["oracle"] != "max" or not known:
            # A solution that nobody wrote is no failure of the task.
            record.found("no solution", solution.reason or "nothing says how to do it")
        else:
            record.oracle = solution.rewards
            if solution.reason:
                record.found("an episode fails", f"the solution: {solution.reason}")
        if len(set(known)) > 1:
            record.found("not repeatable", f"rewards of @oracle: {solution.rewards}")

        async def score_of(who: str, engine: Engine) -> float | None:
            (rollout,) = await self._played(task, engine, 1)
            record.seconds = max(record.seconds, round(rollout.seconds, 3))
            if not rollout.valid:
                ended = rollout.termination
                record.found("an episode fails", f"{who}: {ended.kind}: {ended.reason}")
            return _reward(rollout)

        record.nop = await score_of("nothing", ControlEngine(self._environment, "nop"))
        for name, mark in self._marks.items():
            if name not in NOT_AGAIN and mark:  # demonstrations have no mark
                engine = ControlEngine(self._environment, name)
                record.controls[name] = await score_of(f"@{name}", engine)
        for reply in self._audited.constants[record.group]:
            record.constants[reply] = await score_of(repr(reply), ScriptedEngine(replies=reply))
        record.echo = await score_of("the prompt", ScriptedEngine(replies=_last_message))
        if (script := await self._other(task, others)) is not None:
            record.other = await score_of("another's answer", ScriptedEngine(replies=script))

    async def _solution(self, task: Task) -> Solution:
        """Return what the oracle got, played once for all who ask."""
        if task.id not in self._solutions:
            self._solutions[task.id] = asyncio.ensure_future(self._solved(task))
        return await self._solutions[task.id]

    async def _solved(self, task: Task) -> Solution:
        if task.answer is None and type(self._environment).oracle is Environment.oracle:
            return Solution(rewards=[], replies=[], reason="the task has no answer", seconds=0.0)
        engine = ControlEngine(self._environment, "oracle")
        played = await self._played(task, engine, self._audited.repeats)
        first = played[0]
        return Solution(
            rewards=[_reward(rollout) for rollout in played],
            replies=[Reply(text=t.reply, calls=t.calls) for t in first.turns if not t.player],
            reason="" if first.valid else f"{first.termination.kind}: {first.termination.reason}",
            seconds=max(round(rollout.seconds, 3) for rollout in played),
        )

    async def _other(self, task: Task, others: Sequence[Task]) -> Script | None:
        """Return the replies that solve one of *others* in another way than *task*."""
        own = (await self._solution(task)).replies
        for other in others:
            if other.answer is not None and other.answer == task.answer:
                continue
            try:
                solution = await self._solution(other)
            except (UsageError, TimeoutError):  # which the record of that task says
                continue
            if solution.replies and solution.replies != own and not solution.reason:
                return solution.replies
        return None

    async def _played(self, task: Task, engine: Engine, size: int) -> list[Rollout[Any, Any]]:
        request = RolloutRequest(
            environment=self._environment,
            task=task,
            group_size=size,
            name=self._audited.name,
            seed=SEED,  # runs of one seed are to be the same
        )
        context = RolloutContext(
            engine=engine,
            sampling=Sampling(max_tokens=MAX_TOKENS),
            services=self._services,
            concurrency=1,
            retries=0,
        )
        self._playing.append(task)
        held = _memory("VmRSS", forget_peak=True)
        async with asyncio.timeout(self._audited.seconds):
            (group,) = await run_groups([request], context)
        grown = _memory("VmHWM") - held
        self._memory_mib[task.id] = max(self._memory_mib[task.id], grown)
        return list(group.rollouts)


def _record(audited: Audited, task: Task) -> TaskRecord:
    return TaskRecord(
        task=task.id,
        environment=audited.name,
        digest=audited.digest(task),
        group=audited.groups[task.id],
        level=task.level,
    )


def _reward(rollout: Rollout[Any, Any]) -> float | None:
    return None if rollout.outcome is None else rollout.outcome.total


def _last_message(messages: Sequence[Message], rng: Random) -> str:
    return next(m.content for m in reversed(messages) if m.role != "assistant")


def by_field(tasks: Iterable[Task], name: str) -> dict[str, str]:
    """Return the value of the field *name* of each task, by id; an empty *name* gives empty values.

    Raises:
        UsageError: a task has no such field.
    """
    groups = {}
    for task in tasks:
        if name and not hasattr(task, name):
            known = ", ".join(field.name for field in fields(task))
            raise UsageError(f"--by {name!r}: the tasks have {known}")
        groups[task.id] = str(getattr(task, name)) if name else ""
    return groups


def _memory(name: str, *, forget_peak: bool = False) -> float:
    """Return the MiB of a line of the status of this process: what it holds, or the most it has held
    since the peak was forgotten; 0 where the system has no such file.
    """
    try:
        if forget_peak:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024
