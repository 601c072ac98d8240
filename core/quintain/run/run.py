"""A run: its components, its state, and the operations that `run/loop.py` calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ..console.metrics import (
    TRAINING,
    best_reward,
    evaluation_metrics,
    failure_kind,
    failure_warning,
    failures_in,
    held_out_metrics,
    sampling,
    success_of,
)
from ..console.screen import Screen
from ..errors import Interrupted, UsageError
from ..evaluation.evaluation import Evaluation, evaluate
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.events import (
    CheckpointSaved,
    EvaluationEnd,
    RunStart,
    Steering,
    StepEnd,
    StepMeasured,
)
from ..interfaces.learner import AnyLearner
from ..models.module_weights import ModuleWeights
from ..models.sampler_mismatch import SamplerMismatch
from ..process.interrupts import CANCEL_SECONDS
from ..process.threads import half_the_threads
from ..recipe.plan import RunPlan
from ..recipe.planners import memory_advice
from ..rollouts.spans import Span
from ..services.manager import copy_of_state, states
from ..store.checkpoint import Checkpoint, CheckpointManager, generators, restore_generators
from ..store.rollout_table import Advantages, advantages_of
from ..store.run_folder import RunFolder
from ..types.rollout import AnyGroup
from ..types.sampling import Sampling, decoding
from .collect import Collected, Collector
from .hooks import Hooks
from .sampler_check import check_delivery, explained, rescored
from .weight_sync import WeightSync

A = TypeVar("A")
AnyEnvironment = Environment[Any, Any]
MOST_KINDS = 50
"""Kinds of failures that are counted apart."""
PAUSE_SECONDS = 0.2
"""Between two looks whether a pause is over."""
OTHER_DECODING_TASKS = 200
"""Tasks of the evaluation that decodes in the other way, at most."""


@dataclass
class RunState:
    """The counters of a run in a checkpoint, besides model, optimizer, curriculum and services.

    Attributes:
        step: the last complete step.
        samples, tokens: rollouts run and tokens sampled.
        seconds: by phase, over all processes of the run.
        before: metrics of the evaluation before training.
        accuracy: of the last held-out evaluation, at step *measured*.
        best: the highest accuracy of a saved checkpoint.
        steered: settings that a plugin has changed, see `quintain.interfaces.Steering`.
        evaluation_seconds: of the longest evaluation in training (``training``) and of that before
            and after it (``test``).
        failures: failed episodes by kind.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    measured: int = -1
    best: float | None = None
    evaluation_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    steered: dict[str, int] = field(default_factory=dict)


class Clock:
    """Adds up the seconds of each phase, also in the clock it was forked from."""

    def __init__(self, spent: dict[str, float], parent: Clock | None = None) -> None:
        self.spent = spent
        self._parent = parent

    def fork(self) -> Clock:
        """Return a new clock that also adds to this one."""
        return Clock({}, self)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            with Span(phase):
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
    """A run and its components.

    Attributes:
        stop: set when the user requests a stop.
        steering: what plugins ask for.
        recorded: false between an update and its record, when a checkpoint would contain half a step.
        held_out: the environments of the evaluations.
        alerts: the message of each active alert, by its name.
        advantages: of the last update, for the table of rollouts.
        evaluated: seconds of the evaluations in the training of this process.
        state_before_step: of curriculum and services, once an error ended the step; a checkpoint
            saves it instead of their current state.
    """

    plan: RunPlan
    folder: RunFolder
    learner: AnyLearner
    engine: TokenEngine
    collector: Collector
    weight_sync: WeightSync
    held_out: Sequence[AnyEnvironment]
    services: Mapping[str, Any]
    hooks: Hooks
    screen: Screen
    checkpoints: CheckpointManager
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    steering: Steering = field(default_factory=Steering)
    state: RunState = field(default_factory=RunState)
    alerts: Mapping[str, str] = field(default_factory=dict)
    recorded: bool = True
    advantages: Advantages = field(default_factory=dict)
    evaluated: float = 0.0
    state_before_step: dict[str, Any] | None = None
    _thread: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, 1, "quintain-learner"), init=False
    )

    @property
    def clock(self) -> Clock:
        """The clock of the whole run, over all its processes."""
        return Clock(self.state.seconds)

    def begin(self) -> None:
        """Announce the run to the screen and the hooks."""
        self.screen.start(
            self.plan.steps,
            self.state.step,
            self.plan.evaluation.split,
            temperature=self.plan.sampling.temperature,
            best_reward=best_reward(self.collector.environments),
            may_end_early=bool(self.plan.stop.model_dump(exclude_none=True)),
        )
        self.hooks.emit(
            RunStart(
                run=self.folder.name,
                folder=str(self.folder.path.absolute()),
                step=self.state.step,
                recipe=self.plan.record,
                steering=self.steering,
            )
        )

    # ---------------------------------------------------------------- what plugins ask for
    @asynccontextmanager
    async def next_step(self) -> AsyncIterator[None]:
        """Wait while the run is paused, change the settings that plugins ask to change, and run the
        block, a step.
        """
        steering, changed = self.steering, {}
        if steering.paused:
            self.screen.note(f"paused after step {self.state.step}")
            began = time.monotonic()
            with Span("paused"):
                while steering.paused:
                    await self.until_stopped(asyncio.sleep(PAUSE_SECONDS))
            self._note_steering(paused_seconds=time.monotonic() - began)
        for name in ("max_staleness", "concurrency", "replicas"):
            if (value := getattr(steering, name)) is not None:
                setattr(steering, name, None)
                if refusal := self._change(name, value):
                    self.screen.warn(f"{name} = {value} was asked for and is not set: {refusal}")
                else:
                    changed[name] = value
        if changed:
            self.state.steered |= changed
            self._note_steering(**changed)
        with Span("step", step=self.state.step + 1):
            yield

    def _change(self, name: str, value: int) -> str:
        """Change a setting of the next steps; return why it cannot be changed, or an empty text."""
        collector = self.collector
        if name == "concurrency":
            collector.rollout_context = replace(collector.rollout_context, concurrency=value)
        elif name == "replicas":
            try:
                self.engine.resize(value)
            except UsageError as error:
                return str(error)
        elif collector.saves_unfinished:
            collector.schedule = replace(collector.schedule, max_staleness=value)
        else:
            return "only a schedule that samples ahead has one"
        return ""

    def asked(self, what: str) -> bool:
        """Return whether a plugin asked for *what*, ``evaluate`` or ``checkpoint``, since the last
        call.
        """
        asked = bool(getattr(self.steering, what))
        if asked:
            setattr(self.steering, what, False)
            self._note_steering(**{what: True})
        return asked

    def _note_steering(self, **done: Any) -> None:
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "step": self.state.step,
            "steering": done,
        }
        self.folder.append(record, self.folder.provenance_path)

    # -------------------------------------------------------------- when to stop, evaluate and save
    def finished(self) -> bool:
        """Return whether the run has reached ``run.steps`` or a limit of ``[stop]``."""
        return bool(self.stop_reason())

    def stop_reason(self) -> str:
        """Return the keys that ended the run, with their values; empty before the end."""
        limit, state = self.plan.stop, self.state
        reasons = []
        if self.accurate():
            split = self.plan.evaluation.split
            how = decoding(self.plan.evaluation.sampling.temperature)
            reasons.append(f"{split} {state.accuracy:.1%} ({how}) reached stop.accuracy")
        trained = sum(state.seconds.get(phase, 0.0) for phase in TRAINING)
        after_start = sum(state.seconds.values()) - state.seconds.get("model", 0.0)
        used = {"samples": state.samples, "tokens": state.tokens, "seconds": trained}
        for key, amount in {"minutes": after_start / 60, **used}.items():
            if (bound := getattr(limit, key)) is not None and amount >= bound:
                reasons.append(f"stop.{key} = {bound:g}")
        if self.steering.stop:
            reasons.append(self.steering.stop)
        if state.step >= self.plan.steps:
            reasons.append(f"run.steps = {self.plan.steps}")
        return " and ".join(reasons)

    def accurate(self) -> bool:
        """Return whether the last held-out accuracy reached ``stop.accuracy``."""
        limit = self.plan.stop.accuracy
        return (
            limit is not None and self.state.accuracy is not None and self.state.accuracy >= limit
        )

    def due(self, every: int) -> bool:
        """Return whether an action of every *every* steps is due after this step; 0 is never."""
        return every > 0 and self.state.step % every == 0

    # ---------------------------------------------------------------- evaluation
    async def evaluate_if_due(self, *, last: bool = False) -> dict[str, Any]:
        """Return the held-out metrics before training, every ``evaluation.every`` steps and after
        the last step; else empty.
        """
        evaluation = self.plan.evaluation
        asked = self.asked("evaluate")
        if not (asked or self.due(evaluation.every) or (last and evaluation.every)):
            return {}
        with self._timed_evaluation("training"):
            return await self.evaluate(
                evaluation.split, evaluation.tasks, evaluation.sampling, own=True
            )

    async def test_evaluation(self) -> dict[str, Any]:
        """Evaluate on the test split, before and after training, for the summary only."""
        evaluation, dev = self.plan.evaluation, (self.state.accuracy, self.state.measured)
        split, tasks = evaluation.test_split, evaluation.test_tasks
        if tasks == 0:
            return {"accuracy": None}
        with self._timed_evaluation("test"):
            metrics = await self.until_stopped(self.evaluate(split, tasks, evaluation.sampling))
            if evaluation.other_sampling is not None:
                count = min(tasks or OTHER_DECODING_TASKS, OTHER_DECODING_TASKS)
                metrics["other_decoding"] = await self.until_stopped(
                    self.evaluate(split, count, evaluation.other_sampling)
                )
        self.state.accuracy, self.state.measured = dev
        return {**metrics, "split": split}

    @contextmanager
    def _timed_evaluation(self, kind: str) -> Iterator[None]:
        before = self.state.seconds.get("evaluation", 0.0)
        yield
        took = self.state.seconds["evaluation"] - before
        longest = self.state.evaluation_seconds
        longest[kind] = max(took, longest.get(kind, 0.0))
        if self.state.step:
            self.evaluated += took

    def seconds_to_evaluate(self) -> float:
        """Return the seconds that the evaluations until the end of the run will take, if each takes
        as long as the longest so far.
        """
        every, longest = self.plan.evaluation.every, self.state.evaluation_seconds
        step, steps = self.state.step, self.plan.steps
        in_training = 0
        if every and step < steps:  # the last step is evaluated whether or not it is due
            in_training = steps // every - step // every + (steps % every != 0)
        return in_training * longest.get("training", 0.0) + longest.get("test", 0.0)

    async def evaluate(
        self, split: str, tasks: int | None, sampling: Sampling, *, own: bool = False
    ) -> dict[str, Any]:
        """Measure the current policy on held-out tasks.

        Args:
            tasks: ``None`` is the whole split.
            own: an environment's own split and number of tasks win.
        """
        other_decoding = sampling == self.plan.evaluation.other_sampling
        results = []
        with self.clock("evaluation"):
            async with self.weight_sync.newest(self.learner.weights()):
                for held_out, environment in zip(
                    self.plan.evaluation.environments, self.held_out, strict=True
                ):
                    measured_split = (own and held_out.split) or split
                    count = held_out.count(tasks) if own else tasks
                    result = await self._evaluate(
                        environment, held_out.name, measured_split, count, sampling
                    )
                    results.append(result)
        metrics = {
            **held_out_metrics(results, [one.weight for one in self.plan.evaluation.environments]),
            "temperature": sampling.temperature,
        }
        rollouts = (
            () if other_decoding else [rollout for result in results for rollout in result.rollouts]
        )
        self.screen.evaluation(split, self.state.step, metrics, rollouts)
        self.state.accuracy, self.state.measured = metrics["accuracy"], self.state.step
        return metrics

    async def _evaluate(
        self,
        environment: AnyEnvironment,
        name: str,
        split: str,
        tasks: int | None,
        sampling: Sampling,
    ) -> Evaluation:
        samples = self.plan.evaluation.samples
        self.screen.phase(f"held-out tasks of {name} ({split})", tasks and tasks * samples)
        evaluation = await evaluate(
            environment,
            self.engine,
            name=name,
            split=split,
            tasks=tasks,
            samples=samples,
            sampling=sampling,
            services=self.services,
            concurrency=self.collector.rollout_context.concurrency,
            seed=self.plan.seed,
            play=self.collector.rollout_context.play,
            progress=self.screen.advance,
        )
        self.hooks.emit(
            EvaluationEnd(
                step=self.state.step,
                environment=name,
                split=split,
                metrics=evaluation_metrics(evaluation),
                temperature=sampling.temperature,
                other_decoding=sampling == self.plan.evaluation.other_sampling,
            )
        )
        return evaluation

    # ---------------------------------------------------------------- a step
    async def update(
        self, scored: Any, advantages: Any, groups: Sequence[AnyGroup]
    ) -> dict[str, float]:
        """Update the policy; stop the run if engine and learner disagree about weights or
        log-probs.

        Raises:
            UndeliveredWeights: the engine has other weights than it was given.
            SamplerMismatch: log-probs of the same tokens differ by more than the limit.
        """
        temperature, limit = self.plan.sampling.temperature, self.plan.max_sample_mismatch
        if limit is not None:
            live = ModuleWeights(self.learner.module, self.learner.version)
            await check_delivery(self.engine, self.weight_sync.published(live), live)
        self.advantages = advantages_of(groups, advantages)
        # An update waits for the files of the weights before it, which a rank that is lost in it
        # would take along.
        saved = await self.in_learner_thread(partial(self.checkpoints.complete, wait=True))
        self._tell_saved(saved)
        try:
            metrics: dict[str, float] = await self.in_learner_thread(
                partial(self.learner.step, scored, advantages=advantages)
            )
        except SamplerMismatch as error:
            raise await explained(error, self.learner, self.engine, temperature) from None
        # A learner that compares nothing itself has no such metric. An engine scores with the whole
        # vocabulary, so its scores cannot be compared with those of pruned sampling.
        if (
            limit is not None
            and "mismatch.sample" not in metrics
            and not self.collector.algorithm.prune
        ):
            metrics |= await rescored(self.engine, groups, temperature, limit)
        return metrics

    async def in_learner_thread(self, work: Callable[[], A]) -> A:
        """Return the result of *work* of the learner, which runs in a thread of its own if episodes
        run meanwhile.
        """
        with memory_advice("updating", self.plan, getattr(self.engine, "slots", 0)):
            if not self.collector.overlaps:
                return work()
            with half_the_threads() if self.collector.samples_here else nullcontext():
                in_context = partial(copy_context().run, work)  # with the span around it
                return await asyncio.get_running_loop().run_in_executor(self._thread, in_context)

    def report(self, step: int, collected: Collected) -> None:
        """Count the failed rollouts of a step; report missing groups and notices of the
        curriculum.
        """
        failed = [r.termination for g in collected.tried for r in g.rollouts if not r.valid]
        self.count_failures(
            failures_in(collected.tried), {failure_kind(t): t.reason for t in reversed(failed)}
        )
        if collected.cause:
            accepted = f"{len(collected.accepted)} of {collected.size} groups were accepted"
            self.screen.note(
                f"step {step}: {accepted}, the step continues with them: {collected.cause}"
            )
        for line in self.collector.curriculum.notices():
            self.screen.note(f"step {step}: {line}")
        self.screen.phase(f"step {step}: update")

    def batch_settings(self) -> dict[str, Any]:
        """Return the sampling settings that the learner needs."""
        sampling = self.plan.sampling
        return {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens or self.engine.context,
        }

    def count_failures(
        self, failed: Mapping[str, int], reasons: Mapping[str, str] | None = None
    ) -> None:
        """Count failed episodes per kind (see `quintain.console.metrics.failures_in`); warn on the
        first of each.

        At most `MOST_KINDS` kinds are told apart, because every checkpoint holds their names.
        *reasons* has the message of one failure of each kind, for the warning.
        """
        for name, count in failed.items():
            known = name in self.state.failures or len(self.state.failures) < MOST_KINDS
            kind = name if known else "other failures"
            self.state.failures[kind] = self.state.failures.get(kind, 0) + count
            if self.state.failures[kind] == count:
                reason = (reasons or {}).get(name, "")
                self.screen.warn(failure_warning(kind, count, reason))

    def complete(self, step: int, collected: Collected) -> None:
        """Advance the state of the run by one step, and record the outcomes in the curriculum."""
        self.state.step = step
        self.collector.complete({g.index: success_of(g) for g in collected.tried})
        rollouts = [r for g in (*collected.tried, *collected.wasted) for r in g.rollouts]
        self.state.samples += len(rollouts)
        self.state.tokens += sum(r.tokens for r in rollouts)
        if self.steering.stop:
            self._note_steering(stop=self.steering.stop)

    def record(self, step: int, groups: Sequence[AnyGroup], metrics: Mapping[str, Any]) -> None:
        """Write the step to disk, with the names of the active alerts; then notify hooks and
        screen.
        """
        before, self.alerts = self.alerts, self.raise_alerts({"step": step, **metrics})
        metrics = {**metrics, "alerts": list(self.alerts)}
        with self.clock("record"):
            keep = self.plan.keep_rollouts
            if keep != "none":
                self.folder.write_rollouts(step, groups, self.advantages)
                self.folder.retain(keep, step)
            self.folder.append({"step": step, **metrics})
        self.hooks.emit(StepEnd(step=step, metrics=dict(metrics)))
        self.screen.step(
            step,
            metrics,
            last=self.finished(),
            evaluated=self.evaluated,
            to_evaluate=self.seconds_to_evaluate(),
        )
        self.screen.alerts(before, self.alerts)

    def raise_alerts(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the alerts that the hook plugins raise for a line of the metrics file: messages by
        name.
        """
        alerts: dict[str, str] = {}
        metrics = {name: value for name, value in record.items() if name != "step"}
        self.hooks.emit(StepMeasured(step=record["step"], metrics=metrics, alerts=alerts))
        return alerts

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Restore the state before the block in the random generators and the next checkpoint if an
        error ends it.

        A collector that keeps unfinished work has the state of now in the next checkpoint.
        """
        before = self._state_of_sampling(copy_of_state(states(self.services)))
        drawn = generators()
        try:
            yield
        except BaseException:
            self.state_before_step = None if self.collector.saves_unfinished else before
            restore_generators(drawn)
            raise

    @contextmanager
    def indivisible(self) -> Iterator[None]:
        """Save nothing if an error ends the block: a resume continues from the last checkpoint."""
        self.recorded = False
        yield
        self.recorded = True

    async def until_stopped(self, work: Awaitable[A]) -> A:
        """Return the result of *work*, which is cancelled if the user requests a stop.

        Raises:
            Interrupted: the user requested a stop.
        """
        task = asyncio.ensure_future(work)
        stop_request = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({task, stop_request}, return_when=asyncio.FIRST_COMPLETED)
            if self.stop.is_set():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)  # it may catch its cancellation
                raise Interrupted(f"stopped after step {self.state.step}")
            return await task
        finally:
            stop_request.cancel()

    # ---------------------------------------------------------------- checkpoints and the end
    def save(self) -> None:
        """Save a checkpoint of the last complete step, unless it is saved already. A learner may
        still write it; `report_saved` says when it is complete.
        """
        self.report_saved(wait=True)
        state = self.state
        if not self.recorded or not state.step or self.checkpoints.has(state.step):
            return
        accuracy = state.accuracy if state.measured == state.step else None  # of these very weights
        better = accuracy is not None and (state.best is None or accuracy > state.best)
        state.best = accuracy if better else state.best
        with self.clock("checkpoint"):
            content = {
                "run": vars(state),
                "published": self.weight_sync.state(),
                **(self.state_before_step or self._state_of_sampling(states(self.services))),
            }
            self.checkpoints.begin(state.step, learner=self.learner, state=content, best=better)
        self.report_saved()

    def report_saved(self, *, wait: bool = False) -> None:
        """Complete the checkpoint that is being written, if it is written by now, and tell the
        hooks.
        """
        self._tell_saved(self.checkpoints.complete(wait=wait))

    def _tell_saved(self, saved: Checkpoint | None) -> None:
        if saved is not None:
            path = str(saved.path.absolute())
            self.hooks.emit(CheckpointSaved(step=saved.step, path=path, best=saved.best))

    def _state_of_sampling(self, services: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "curriculum": self.collector.curriculum.state(),
            "queue": self.collector.state(),
            "services": services,
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; services restored their states when they started.

        Raises:
            RunError: a file of the run is damaged.
        """
        content = checkpoint.restore(self.learner)
        self.state = RunState(**content["run"])
        self.collector.curriculum.restore(content["curriculum"])
        self.collector.restore(content.get("queue", {}))
        for name, value in self.state.steered.items():
            self._change(name, value)
        self.weight_sync.restore(content["published"])
        self.folder.truncate_after(self.state.step)
        records = self.folder.metrics()
        self.alerts = dict.fromkeys(records[-1].get("alerts", ()) if records else (), "")

    def report_hooks(self) -> None:
        """Report the hook plugins that failed, close all, and end the thread of updates."""
        for line in self.hooks.report():
            self.screen.warn(line)
        self.hooks.close()
        self._thread.shutdown(wait=False)

    def summary(self, *, after: Mapping[str, Any], stopped: str) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        state = self.state
        return {
            "run": self.folder.name,
            "environments": list(self.plan.labels),
            "model": self.plan.model.name,
            "algorithm": self.plan.algorithm_label,
            "seed": self.plan.seed,
            "steps": state.step,
            "samples": state.samples,
            "tokens": state.tokens,
            "stopped": stopped,
            "held_out": {"before": state.before, "after": dict(after)},
            "failures": state.failures,
            "sampling": sampling(self.folder.metrics()),
            "seconds": {**state.seconds, "total": sum(state.seconds.values())},
        }
