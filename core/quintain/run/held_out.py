"""Held-out evaluation: how good the policy is before, in and after training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ..console.metrics import evaluation_metrics, held_out_metrics
from ..console.screen import Screen
from ..evaluation.evaluation import Evaluation, evaluate, tasks_of
from ..interfaces.environment import Environment
from ..interfaces.events import EvaluationEnd
from ..interfaces.learner import AnyLearner
from ..recipe.plan import EvaluationPlan
from ..store.best import HeldOutScore
from ..types.sampling import Sampling, decoding
from .collect import Collector
from .hooks import Hooks
from .interruption import Interruption
from .progress import RunProgress
from .weight_sync import WeightSync

OTHER_DECODING_TASKS = 200
"""Tasks of the evaluation that decodes in the other way, at most."""


@dataclass(kw_only=True)
class HeldOutEvaluation:
    """Measures the policy of a run on held-out tasks.

    Attributes:
        environments: in the order of ``plan.environments``.
        steps: of the run.
        collector: episodes of an evaluation are played as its episodes are.
        before: metrics of the test split before training; empty before they are measured.
        found: by the last evaluation in training, at step *measured*.
        longest: seconds of the longest evaluation in training (``training``) and of that before
            and after it (``test``).
        seconds: of the evaluations in the training of this process.
    """

    plan: EvaluationPlan
    environments: Sequence[Environment[Any, Any]]
    steps: int
    learner: AnyLearner
    collector: Collector
    weight_sync: WeightSync
    hooks: Hooks
    screen: Screen
    progress: RunProgress
    interruption: Interruption
    before: dict[str, Any] = field(default_factory=dict)
    found: HeldOutScore | None = None
    measured: int = -1
    longest: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    async def evaluate(self) -> dict[str, Any]:
        """Return the metrics of an evaluation in training.

        An environment's own split and number of tasks replace those of the plan.

        Raises:
            Interrupted: the user requested a stop.
        """
        with self._timed("training"):
            metrics = await self._measure(
                self.plan.split, self.plan.tasks, self.plan.sampling, own=True
            )
        self.found = HeldOutScore.of(metrics, self.plan.split)
        self.measured = self.progress.step
        return metrics

    async def test(self) -> dict[str, Any]:
        """Return the metrics of the test split, before or after training, for the summary only.

        Raises:
            Interrupted: the user requested a stop.
        """
        split = self.plan.test_split
        tasks = self.plan.test_tasks
        if tasks == 0:
            return {"accuracy": None}
        with self._timed("test"):
            metrics = await self._measure(split, tasks, self.plan.sampling)
            if self.plan.other_sampling is not None:
                count = min(tasks or OTHER_DECODING_TASKS, OTHER_DECODING_TASKS)
                metrics["other_decoding"] = await self._measure(
                    split, count, self.plan.other_sampling
                )
        return {**metrics, "split": split}

    @property
    def accuracy(self) -> float | None:
        """The accuracy that the last evaluation in training found."""
        return self.found.accuracy if self.found else None

    def shown_accuracy(self) -> str:
        """Return the last accuracy with its split and how replies were decoded, for messages."""
        return f"{self.plan.split} {self.accuracy:.1%} ({decoding(self.plan.sampling.temperature)})"

    def seconds_left(self) -> float:
        """Return the seconds that the evaluations until the end of the run will take, if each takes
        as long as the longest so far.
        """
        every = self.plan.every
        step = self.progress.step
        in_training = 0
        if every and step < self.steps:
            # the last step is evaluated whether or not it is due
            in_training = math.ceil(self.steps / every) - step // every
        return in_training * self.longest.get("training", 0.0) + self.longest.get("test", 0.0)

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "before": self.before,
            "found": self.found and asdict(self.found),
            "measured": self.measured,
            "longest": self.longest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`."""
        self.before = state["before"]
        self.found = state["found"] and HeldOutScore(**state["found"])
        self.measured = state["measured"]
        self.longest = state["longest"]

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        before = self.progress.seconds.get("evaluation", 0.0)
        yield
        took = self.progress.seconds["evaluation"] - before
        self.longest[kind] = max(took, self.longest.get(kind, 0.0))
        if self.progress.step:  # else it came before training, which no forecast counts
            self.seconds += took

    async def _measure(
        self, split: str, tasks: int | None, sampling: Sampling, *, own: bool = False
    ) -> dict[str, Any]:
        """Measure the newest policy on *tasks* of *split*, ``None`` for all of it; *own*: an
        environment's own split and number of tasks win.
        """
        results = []
        with self.progress.clock("evaluation"):
            # With a staleness the engine has older weights than those to measure.
            async with self.weight_sync.newest(self.learner.weights()):
                for held_out, environment in zip(
                    self.plan.environments, self.environments, strict=True
                ):
                    its_split = (own and held_out.split) or split
                    its_tasks = held_out.count(tasks) if own else tasks
                    results.append(
                        await self._evaluate(
                            environment, held_out.name, its_split, its_tasks, sampling
                        )
                    )
        metrics = {
            **held_out_metrics(results, [one.weight for one in self.plan.environments]),
            "temperature": sampling.temperature,
        }
        shown = results if sampling != self.plan.other_sampling else []
        rollouts = [rollout for result in shown for rollout in result.rollouts]
        self.screen.evaluation(split, self.progress.step, metrics, rollouts)
        return metrics

    async def _evaluate(
        self,
        environment: Environment[Any, Any],
        name: str,
        split: str,
        tasks: int | None,
        sampling: Sampling,
    ) -> Evaluation:
        samples = self.plan.samples
        drawn = tasks_of(environment, split, tasks, name=name)
        self.screen.phase(f"held-out tasks of {name} ({split})", len(drawn) * samples)
        context = self.collector.rollout_context
        evaluation = await self.interruption.until_stopped(
            evaluate(
                environment,
                context.engine,
                name=name,
                split=split,
                tasks=drawn,
                samples=samples,
                sampling=sampling,
                services=context.services,
                concurrency=context.concurrency,
                seed=context.run_seed,
                play=context.play,
                progress=self.screen.advance,
            )
        )
        self.hooks.emit(
            EvaluationEnd(
                step=self.progress.step,
                environment=name,
                split=split,
                metrics=evaluation_metrics(evaluation),
                temperature=sampling.temperature,
                other_decoding=sampling == self.plan.other_sampling,
            )
        )
        return evaluation
