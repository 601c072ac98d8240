"""One run: what takes part in it, where it stands, and the parts that `quintain.loop` puts together."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from . import health
from .algorithm import Candidate, Row
from .checkpoint import Checkpoint, Keeper, generators, restore_generators
from .curriculum import Curriculum
from .engine import TokenEngine
from .environment import Environment
from .episodes import Job, Setting
from .errors import RunError
from .evaluate import Evaluation, evaluate
from .learning.batch import Batch, Sample
from .plugins.hooks import CheckpointSaved, EvaluationEnd, Hooks, RunStart, StepEnd
from .recipe import Recipe
from .report.screen import Screen
from .rollout import Group, Rollout
from .services import states
from .store import RunFolder

if TYPE_CHECKING:
    from .learning.learner import Learner

A = TypeVar("A")
AnyGroup = Group[Any, Any]


class Interrupted(Exception):
    """The user asked to stop; all that was complete is saved."""


@dataclass
class Standing:
    """Where a run stands: all that a checkpoint holds besides model, optimizer, curriculum and services."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    measured: int = -1
    best: float | None = None
    failures: dict[str, int] = field(default_factory=dict)


class Clock:
    """Adds up the time of each phase, here and in the clocks it was forked from."""

    def __init__(self, spent: dict[str, float], parent: Clock | None = None) -> None:
        self.spent = spent
        self._parent = parent

    def fork(self) -> Clock:
        """A clock of its own that also feeds this one."""
        return Clock({}, self)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(phase, time.monotonic() - began)

    def add(self, phase: str, seconds: float) -> None:
        """Count *seconds* of *phase*."""
        self.spent[phase] = self.spent.get(phase, 0.0) + seconds
        if self._parent is not None:
            self._parent.add(phase, seconds)


@dataclass(kw_only=True)
class Run:
    """One run and all that takes part in it."""

    recipe: Recipe
    folder: RunFolder
    learner: Learner
    engine: TokenEngine
    row: Row
    curriculum: Curriculum
    environments: Sequence[Environment[Any, Any]]
    services: Mapping[str, Any]
    hooks: Hooks
    screen: Screen
    keeper: Keeper
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    at: Standing = field(default_factory=Standing)
    whole: bool = True
    """False between an update and its record: a checkpoint then would hold half a step."""
    undone: dict[str, Any] | None = None
    """What services held before a step that was given up; a checkpoint takes this instead of what they hold now."""

    @property
    def clock(self) -> Clock:
        """Of the whole run, over all its processes."""
        return Clock(self.at.seconds)

    def begin(self) -> None:
        """Tell the screen and the hooks."""
        self.screen.start(self.recipe.run.steps, self.at.step)
        plain = self.recipe.model_dump(mode="json")
        path = str(self.folder.path.absolute())
        self.hooks.emit(RunStart(run=self.folder.name, folder=path, step=self.at.step, recipe=plain))

    def over(self) -> bool:
        """Whether the run has reached an end that the recipe names."""
        limit = self.recipe.stop
        if limit.accuracy is not None and self.at.accuracy is not None and self.at.accuracy >= limit.accuracy:
            return True
        if limit.minutes is not None and sum(self.at.seconds.values()) >= 60 * limit.minutes:
            return True
        return self.at.step >= self.recipe.run.steps

    def due(self, every: int) -> bool:
        """Whether what happens *every* so many steps happens after this one; 0 is never."""
        return every > 0 and self.at.step % every == 0

    def jobs(self, step: int) -> list[Job]:
        """What the curriculum wants tried."""
        batch = self.recipe.batch
        self.screen.phase(f"step {step}: rollouts", batch.groups * batch.members)
        return [
            Job(
                environment=self.environments[pick.environment],
                task=pick.task,
                members=batch.members,
                name=self.recipe.environments[pick.environment].use,
                index=(step - 1) * batch.groups + i,
                visit=pick.visit,
            )
            for i, pick in enumerate(self.curriculum.pick(batch.groups))
        ]

    def setting(self, step: int) -> Setting:
        """What all episodes of the step share."""
        return Setting(
            engine=self.engine,
            how=self.recipe.sampling.how(),
            services=self.services,
            run_seed=self.recipe.run.seed,
            step=step,
            concurrency=self._concurrency,
            retries=self.recipe.batch.retries,
        )

    @property
    def _concurrency(self) -> int:
        return self.recipe.batch.concurrency or self.engine.concurrency or Setting.concurrency

    def admit(self, groups: Sequence[AnyGroup]) -> tuple[list[AnyGroup], Counter[str]]:
        """The groups to learn from, and why others are refused. Failed members have left them; they are never zeros.

        Raises:
            RunError: every episode failed, for reasons of ours.
        """
        self._count_failures(groups)
        admitted: list[AnyGroup] = []
        refused: Counter[str] = Counter()
        for group in groups:
            reason = self._refusal(group)
            if reason:
                refused[reason] += 1
            else:
                admitted.append(group)
        return admitted, refused

    def _refusal(self, group: AnyGroup) -> str:
        valid = group.valid
        if len(valid) < self.recipe.batch.min_members:
            return "too few valid members"
        seats = dict.fromkeys(seat for r in valid for seat in r.transcripts)
        reasons = [str(self.row.admission(_candidate(group, seat))) for seat in seats]
        return "" if "" in reasons else next(iter(reasons), "no tokens to train on")

    def _count_failures(self, groups: Sequence[AnyGroup]) -> None:
        failed = Counter(f"{r.ending.kind}: {r.ending.reason}" for g in groups for r in g.rollouts if not r.valid)
        for kind, count in failed.items():
            self.at.failures[kind] = self.at.failures.get(kind, 0) + count
            if self.at.failures[kind] == count:
                self.screen.warn(f"{count} episodes failed and were left out: {kind}")
        if failed and not any(g.valid for g in groups):
            reason, count = failed.most_common(1)[0]
            raise RunError(f"all {failed.total()} episodes of the step failed, {count} of them with {reason}")

    def batch(self, groups: Sequence[AnyGroup]) -> Batch:
        """What the learner sees: one sample per valid rollout and seat; a group's seats are compared each among
        themselves.
        """
        numbers: dict[tuple[int, str], int] = {}
        samples: list[Sample] = []
        for group in groups:
            for r in group.valid:
                for seat, transcript in r.transcripts.items():
                    sequences = tuple(transcript.sequences())
                    number = numbers.setdefault((group.index, seat), len(numbers))
                    if sequences:
                        samples.append(_sample(r, seat, sequences, number))
        how = self.recipe.sampling
        return Batch(
            samples=tuple(samples), temperature=how.temperature, max_tokens=how.max_tokens or self.engine.context
        )

    def count(self, step: int, groups: Sequence[AnyGroup]) -> None:
        """The step is complete."""
        self.at.step = step
        self.at.samples += sum(len(g.rollouts) for g in groups)
        self.at.tokens += sum(r.tokens for g in groups for r in g.rollouts)

    async def hold_out(self, split: str, tasks: int | None) -> dict[str, Any]:
        """Metrics of the policy on held-out tasks of all environments."""
        table = self.recipe.evaluation
        results: list[Evaluation] = []
        with self.clock("evaluation"):
            for environment, row in zip(self.environments, self.recipe.environments, strict=True):
                self.screen.phase(f"held-out tasks of {row.use} ({split})", tasks and tasks * table.samples)
                work = evaluate(
                    environment,
                    self.engine,
                    name=row.use,
                    split=split,
                    tasks=tasks,
                    samples=table.samples,
                    how=table.how(self.recipe.sampling),
                    services=self.services,
                    concurrency=self._concurrency,
                    seed=self.recipe.run.seed,
                    progress=self.screen.advance,
                )
                result = await work
                results.append(result)
                metrics = health.evaluation_metrics(result)
                self.hooks.emit(EvaluationEnd(step=self.at.step, environment=row.use, split=split, metrics=metrics))
        found = health.held_out(results, [row.weight for row in self.recipe.environments])
        self.at.accuracy, self.at.measured = found["accuracy"], self.at.step
        return found

    async def final(self, when: str) -> dict[str, Any]:
        """The measurement that is reported: once before training, once after."""
        table, kept = self.recipe.evaluation.test, (self.at.accuracy, self.at.measured)
        if table.tasks == 0:
            return {"accuracy": None}
        found = await self.until_stopped(self.hold_out(table.split, table.tasks))
        self.at.accuracy, self.at.measured = kept  # the test split decides nothing
        if found["accuracy"] is not None:
            self.screen.note(f"{when} training: {found['accuracy']:.1%} of held-out tasks right ({table.split} split)")
        return found

    def record(self, step: int, groups: Sequence[AnyGroup], metrics: Mapping[str, Any]) -> None:
        """Put the step on disk, then tell the hooks and the screen."""
        with self.clock("record"):
            keep = self.recipe.rollouts.keep
            if keep != "none":
                self.folder.write_rollouts(step, groups)
                self.folder.retain(keep, step)
            self.folder.append({"step": step, **metrics})
        self.hooks.emit(StepEnd(step=step, metrics=dict(metrics)))
        self.screen.step(step, metrics)

    def save(self) -> None:
        """A checkpoint of the last complete step, unless there is one."""
        if not self.whole or not self.at.step or self.keeper.has(self.at.step):
            return
        known = self.at.accuracy if self.at.measured == self.at.step else None  # of these very weights
        better = known is not None and (self.at.best is None or known > self.at.best)
        self.at.best = known if better else self.at.best
        with self.clock("checkpoint"):
            state = {
                "standing": vars(self.at),
                "curriculum": self.curriculum.state(),
                "services": self.undone if self.undone is not None else states(self.services),
                "version": self.engine.version,
            }
            path = self.keeper.save(self.at.step, learner=self.learner, state=state, best=better)
        self.hooks.emit(CheckpointSaved(step=self.at.step, path=str(path.absolute()), best=better))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up a checkpoint; its services took up their states when they started."""
        state = checkpoint.restore(self.learner)
        self.at = Standing(**state["standing"])
        self.curriculum.restore(state["curriculum"])
        self.folder.truncate_after(self.at.step)

    @contextmanager
    def undone_unless_complete(self) -> Iterator[None]:
        """If the block is left by an error, all that a checkpoint holds stands as if it had not begun."""
        before, held = self.curriculum.state(), copy.deepcopy(states(self.services))
        drawn = generators()
        try:
            yield
        except BaseException:
            self.curriculum.restore(before)
            self.undone = held
            restore_generators(drawn)
            raise

    @contextmanager
    def indivisible(self) -> Iterator[None]:
        """If the block is left by an error, nothing is saved: the last checkpoint is what a resume goes on from."""
        self.whole = False
        yield
        self.whole = True

    def report_hooks(self) -> None:
        """Say which hook plugins failed, and let them go."""
        for line in self.hooks.report():
            self.screen.warn(line)
        self.hooks.close()

    async def until_stopped(self, work: Awaitable[A]) -> A:
        """The result of *work*, which is given up where the user asks to stop.

        Raises:
            Interrupted: the user did.
        """
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if self.stop.is_set():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise Interrupted(f"stopped after step {self.at.step}")
            return await task
        finally:
            asked.cancel()

    def summary(self, *, after: Mapping[str, Any]) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        return {
            "run": self.folder.name,
            "environments": [row.use for row in self.recipe.environments],
            "model": self.recipe.model.name,
            "algorithm": self.recipe.algorithm.use,
            "seed": self.recipe.run.seed,
            "steps": self.at.step,
            "samples": self.at.samples,
            "tokens": self.at.tokens,
            "held_out": {"before": self.at.before, "after": dict(after)},
            "failures": self.at.failures,
            "seconds": {**self.at.seconds, "total": sum(self.at.seconds.values())},
        }


def _candidate(group: AnyGroup, seat: str) -> Candidate:
    """The valid members that *seat* took part in, as admission sees them: seats are compared each among themselves."""
    members = [r for r in group.valid if seat in r.transcripts]
    verdicts = tuple(r.verdict.of_seat(seat) if r.verdict else 0.0 for r in members)
    shaping = tuple(r.shaping.of_seat(seat) if r.shaping else 0.0 for r in members)
    totals = tuple(v + s for v, s in zip(verdicts, shaping, strict=True))
    return Candidate(verdicts=verdicts, totals=totals, requested=len(group.rollouts))


def _sample(rollout: Rollout[Any, Any], seat: str, sequences: Any, group: int) -> Sample:
    return Sample(
        sequences=sequences,
        verdict=rollout.verdict.of_seat(seat) if rollout.verdict else 0.0,
        shaping=rollout.shaping.of_seat(seat) if rollout.shaping else 0.0,
        group=group,
        environment=rollout.environment,
    )
