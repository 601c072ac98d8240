"""One run: what takes part in it, where it stands, and the parts that `quintain.training.loop` puts together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..evaluation.evaluate import Evaluation, evaluate
from ..interfaces.algorithm import Candidate, Row
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.learner import Batch, Sample, overlong
from ..registry.hooks import CheckpointSaved, EvaluationEnd, Hooks, RunStart, StepEnd
from ..rollouts.replay import Replays
from ..rollouts.runner import Job, Setting
from ..services.manager import held_back, states
from ..types.rollout import EndingKind, Group, Rollout
from ..types.transcript import Source
from . import metrics as health
from .alerts import Watch
from .checkpoint import Checkpoint, Keeper, generators, restore_generators
from .collect import Filled, fill
from .recipe.tables import Recipe
from .run_folder import RunFolder
from .screen import Screen
from .tasks import Curriculum
from .weight_sync import Publisher

if TYPE_CHECKING:
    from ..learning.learner import Learner

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
    publisher: Publisher
    replays: Replays = field(default_factory=Replays)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    at: Standing = field(default_factory=Standing)
    watch: Watch = field(default_factory=Watch)
    whole: bool = True
    """False between an update and its record: a checkpoint then would hold half a step."""
    undone: dict[str, Any] | None = None
    """What curriculum and services held before a step that was given up; a checkpoint takes this instead of what they
    hold now.
    """

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
        if self.accurate():
            return True
        if limit.minutes is not None and sum(self.at.seconds.values()) >= 60 * limit.minutes:
            return True
        trained = sum(self.at.seconds.get(phase, 0.0) for phase in health.TRAINING)
        used = ((limit.samples, self.at.samples), (limit.tokens, self.at.tokens), (limit.seconds, trained))
        if any(most is not None and amount >= most for most, amount in used):
            return True
        return self.at.step >= self.recipe.run.steps

    def accurate(self) -> bool:
        """Whether the last held-out measurement was as good as ``stop.accuracy`` asks."""
        limit = self.recipe.stop.accuracy
        return limit is not None and self.at.accuracy is not None and self.at.accuracy >= limit

    def due(self, every: int) -> bool:
        """Whether what happens *every* so many steps happens after this one; 0 is never."""
        return every > 0 and self.at.step % every == 0

    async def fill(self, step: int) -> Filled:
        """Try tasks until the batch is full, or as the row's plan says. Failed members leave; they are never zeros.

        Raises:
            RunError: every episode failed, for reasons of ours, or there are no tasks.
        """
        batch, plan = self.recipe.batch, self.row.plan

        def show(number: int, groups: int) -> None:
            which = f", round {number}" if number > 1 else ""
            total = None if plan.refill == "active" else groups * batch.members
            self.screen.phase(f"step {step}: rollouts{which}", total)

        filled = await fill(
            plan,
            batch.groups,
            self.setting(step),
            draw=self._draw,
            refusal=self._refusal,
            on_round=show,
            on_rollout=self.screen.advance,
        )
        self.count_failures(health.failures_in(filled.tried))
        if filled.cause:
            found = f"{len(filled.admitted)} of {batch.groups} groups were admitted"
            self.screen.note(f"step {step}: {found}, the step goes on with them: {filled.cause}")
        for line in self.curriculum.notices():
            self.screen.note(f"step {step}: {line}")
        return filled

    def _draw(self) -> Job:
        (pick,) = self.curriculum.pick(1)
        return Job(
            environment=self.environments[pick.environment],
            task=pick.task,
            members=self.recipe.batch.members,
            name=self.names[pick.environment],
            index=pick.index,
            visit=pick.visit,
        )

    def setting(self, step: int) -> Setting:
        """What all episodes of the step share."""
        return Setting(
            engine=self.engine,
            how=self.recipe.sampling.how().but(prune=self.row.prune, interrupt=self.row.plan.interrupt),
            services=self.services,
            run_seed=self.recipe.run.seed,
            step=step,
            concurrency=self._concurrency,
            retries=self.recipe.batch.retries,
        )

    def _candidate(self, group: AnyGroup, seat: str) -> Candidate:
        """The valid members that *seat* took part in, as admission sees them: seats are compared among themselves."""
        members = [r for r in group.valid if seat in r.transcripts]
        verdicts = tuple(r.verdict.of_seat(seat) if r.verdict else 0.0 for r in members)
        shaping = [r.shaping.of_seat(seat) if r.shaping else 0.0 for r in members]
        longest = self.recipe.sampling.max_tokens
        lengths = [max((t.tokens for t in r.turns if t.seat == seat), default=0) for r in members]
        punished = [overlong(length, longest, self.row.overlong) for length in lengths]
        totals = tuple(map(math.fsum, zip(verdicts, shaping, punished, strict=True)))
        return Candidate(verdicts=verdicts, totals=totals, requested=len(group.rollouts))

    @property
    def names(self) -> list[str]:
        """Of the environments, as rollouts and metrics carry them: a second ``arithmetic`` is ``arithmetic#2``."""
        return health.distinct(row.use for row in self.recipe.environments)

    @property
    def _concurrency(self) -> int:
        return self.recipe.batch.concurrency or self.engine.concurrency or Setting.concurrency

    def _refusal(self, group: AnyGroup) -> str:
        valid = group.valid
        if len(valid) < (self.recipe.batch.min_members or 1):
            return "too few valid members"
        seats = dict.fromkeys(seat for r in valid for seat in r.transcripts)
        reasons = [str(self.row.admission(self._candidate(group, seat))) for seat in seats]
        return "" if "" in reasons else next(iter(reasons), "no tokens to train on")

    def count_failures(self, failed: Mapping[str, int]) -> None:
        """Count failed episodes per kind (see `quintain.training.metrics.failures_in`); warn on the first of each."""
        for kind, count in failed.items():
            self.at.failures[kind] = self.at.failures.get(kind, 0) + count
            if self.at.failures[kind] == count:
                self.screen.warn(f"{count} episodes failed and were left out: {kind}")

    def batch(self, groups: Sequence[AnyGroup]) -> Batch:
        """What the learner sees: one sample per valid rollout and seat; a group's seats are compared each among
        themselves.
        """
        numbers: dict[tuple[int, str], int] = {}
        samples: list[Sample] = []
        played: list[Rollout[Any, Any]] = []
        for group in groups:
            for r in group.valid:
                for seat, transcript in r.transcripts.items():
                    sequences = tuple(transcript.sequences())
                    number = numbers.setdefault((group.index, seat), len(numbers))
                    if sequences:
                        samples.append(_sample(r, seat, sequences, number))
                        played.append(r)
        self.replays.take(played, self.setting(self.at.step + 1))
        how = self.recipe.sampling
        return Batch(
            samples=tuple(samples), temperature=how.temperature, max_tokens=how.max_tokens or self.engine.context
        )

    async def learn(self, batch: Batch) -> dict[str, float]:
        """One step of the learner; nothing where no token trains."""
        if not batch.tokens:
            return {}
        prepared = self.learner.prepare(batch)
        return self.learner.step(prepared, advantages=await self.learner.compute_advantages(prepared))

    async def publish(self) -> None:
        """Bring the learner's weights to the engine, as late as the row's plan says."""
        await self.publisher.publish(self.learner.weights())

    def about(self, filled: Filled) -> dict[str, Any]:
        """Metrics of what the row's plan did."""
        plan, valid = self.row.plan, [r for g in filled.tried for r in g.valid]
        found: dict[str, Any] = {**self.curriculum.metrics()}
        if plan.refill != "none":
            found |= filled.metrics()
        if plan.interrupt is not None and valid:
            found["interrupted"] = sum(map(_interrupted, valid)) / len(valid)
        return found

    def count(self, step: int, groups: Sequence[AnyGroup]) -> None:
        """The step is complete."""
        self.at.step = step
        self.curriculum.record({g.index: health.success_of(g) for g in groups})
        self.at.samples += sum(len(g.rollouts) for g in groups)
        self.at.tokens += sum(r.tokens for g in groups for r in g.rollouts)

    async def hold_out(self, split: str, tasks: int | None) -> dict[str, Any]:
        """Metrics of the policy as it is now on held-out tasks of all environments."""
        with self.clock("evaluation"):
            async with self.publisher.newest(self.learner.weights()):
                results = [await self._hold_out(i, split, tasks) for i in range(len(self.environments))]
        found = health.held_out(results, [row.weight for row in self.recipe.environments])
        self.at.accuracy, self.at.measured = found["accuracy"], self.at.step
        return found

    async def _hold_out(self, at: int, split: str, tasks: int | None) -> Evaluation:
        table, name = self.recipe.evaluation, self.names[at]
        self.screen.phase(f"held-out tasks of {name} ({split})", tasks and tasks * table.samples)
        result = await evaluate(
            self.environments[at],
            self.engine,
            name=name,
            split=split,
            tasks=tasks,
            samples=table.samples,
            how=table.how(self.recipe.sampling).but(interrupt=self.row.plan.interrupt),
            services=self.services,
            concurrency=self._concurrency,
            seed=self.recipe.run.seed,
            progress=self.screen.advance,
        )
        metrics = health.evaluation_metrics(result)
        self.hooks.emit(EvaluationEnd(step=self.at.step, environment=name, split=split, metrics=metrics))
        return result

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
        """Put the step on disk, with the names of the alarms that are on; then tell the hooks and the screen."""
        alarms = self.watch.see({"step": step, **metrics})
        metrics = {**metrics, "alarms": list(alarms.active)}
        with self.clock("record"):
            keep = self.recipe.rollouts.keep
            if keep != "none":
                self.folder.write_rollouts(step, groups)
                self.folder.retain(keep, step)
            self.folder.append({"step": step, **metrics})
        self.hooks.emit(StepEnd(step=step, metrics=dict(metrics)))
        self.screen.step(step, metrics)
        self.screen.alarms(alarms, metrics)

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
                "published": self.publisher.state(),
                **(self.undone or {"curriculum": self.curriculum.state(), "services": states(self.services)}),
            }
            path = self.keeper.save(self.at.step, learner=self.learner, state=state, best=better)
        self.hooks.emit(CheckpointSaved(step=self.at.step, path=str(path.absolute()), best=better))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up a checkpoint; its services took up their states when they started."""
        state = checkpoint.restore(self.learner)
        self.at = Standing(**state["standing"])
        self.curriculum.restore(state["curriculum"])
        self.publisher.restore(state["published"])
        self.folder.truncate_after(self.at.step)
        self.watch = Watch(self.folder.metrics())

    @contextmanager
    def undone_unless_complete(self) -> Iterator[None]:
        """If the block is left by an error, all that a checkpoint holds stands as if it had not begun."""
        before = {"curriculum": self.curriculum.state(), "services": held_back(states(self.services))}
        drawn = generators()
        try:
            yield
        except BaseException:
            self.undone = before
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


def _sample(rollout: Rollout[Any, Any], seat: str, sequences: Any, group: int) -> Sample:
    turns = tuple(turn.tokens for turn in rollout.turns if turn.seat == seat and turn.tokens)
    known = sum(turns) == sum(sum(s.mask) for s in sequences)
    return Sample(
        sequences=sequences,
        verdict=rollout.verdict.of_seat(seat) if rollout.verdict else 0.0,
        shaping=rollout.shaping.of_seat(seat) if rollout.shaping else 0.0,
        group=group,
        environment=rollout.environment,
        truncated=rollout.ending.kind is EndingKind.TRUNCATED,
        turns=turns if known else (),
        turn_scores=_turn_scores(rollout, seat, len(turns)) if known else (),
    )


def _interrupted(rollout: Rollout[Any, Any]) -> bool:
    return any(Source.FORCED in branch.sources for t in rollout.transcripts.values() for branch in t.branches)


def _turn_scores(rollout: Rollout[Any, Any], seat: str, turns: int) -> tuple[float, ...]:
    """What single turns of a seat were given, verdict and shaping added up; nothing where seats score apart."""
    scores = [s for s in (rollout.verdict, rollout.shaping) if s is not None and s.turns and seat not in s.seats]
    if seat or not scores or any(len(s.turns) > turns for s in scores):
        return ()
    return tuple(sum(s.turns[i] for s in scores if i < len(s.turns)) for i in range(turns))
