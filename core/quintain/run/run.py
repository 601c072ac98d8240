"""A run: what takes part in it, and one object for each of its concerns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..console.metrics import best_reward, sampling, success_of
from ..console.screen import Screen
from ..errors import Interrupted
from ..interfaces.engine import TokenEngine
from ..interfaces.environment import Environment
from ..interfaces.events import RunEnd, RunStart
from ..interfaces.learner import AnyLearner
from ..recipe.advice import Advice
from ..recipe.plan import RunPlan
from ..store.checkpoint import CheckpointManager
from ..store.run_folder import RunFolder
from ..tracebacks import text_of
from .collect import Collected, Collector
from .held_out import HeldOutEvaluation
from .hooks import Hooks
from .interruption import Interruption
from .progress import RunProgress
from .record import RunRecord
from .saving import Saving
from .steering import RunSteering
from .stopping import Stopping
from .update import PolicyUpdate
from .weight_sync import WeightSync


class Run:
    """A run, whose loop is `quintain.run.loop`.

    Args:
        environments: of the evaluations.

    Attributes:
        plan: what it is built from.
        learner, engine, collector, weight_sync: what trains, samples, collects the groups of a step
            and sends new weights.
        folder, screen, hooks: where the run is written, shown and observed.
        progress: how far it has come.
        interruption: whether its user stops it at once.
        steering: what plugins ask of it.
        held_out: its evaluations.
        stopping: whether it has reached a limit.
        record: its metrics, alerts and failures.
        saving: its checkpoints.
        update: of the policy.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        folder: RunFolder,
        screen: Screen,
        hooks: Hooks,
        learner: AnyLearner,
        engine: TokenEngine,
        collector: Collector,
        weight_sync: WeightSync,
        checkpoints: CheckpointManager,
        environments: Sequence[Environment[Any, Any]],
        progress: RunProgress,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.screen = screen
        self.hooks = hooks
        self.learner = learner
        self.engine = engine
        self.collector = collector
        self.weight_sync = weight_sync
        self.progress = progress
        self.interruption = Interruption(progress)
        self.steering = RunSteering(
            folder=folder,
            screen=screen,
            progress=progress,
            interruption=self.interruption,
            collector=collector,
            engine=engine,
        )
        self.held_out = HeldOutEvaluation(
            plan=plan.evaluation,
            environments=environments,
            steps=plan.stop.steps,
            learner=learner,
            collector=collector,
            weight_sync=weight_sync,
            hooks=hooks,
            screen=screen,
            progress=progress,
            interruption=self.interruption,
        )
        self.stopping = Stopping(
            limits=plan.stop,
            progress=progress,
            held_out=self.held_out,
            asked=self.steering.asked,
        )
        self.record = RunRecord(
            folder=folder,
            screen=screen,
            hooks=hooks,
            progress=progress,
            held_out=self.held_out,
            keep=plan.saving.rollouts,
            advice=Advice(plan, environments),
        )
        self.saving = Saving(
            checkpoints=checkpoints,
            learner=learner,
            collector=collector,
            weight_sync=weight_sync,
            progress=progress,
            held_out=self.held_out,
            steering=self.steering,
            record=self.record,
            hooks=hooks,
        )
        self.update = PolicyUpdate(
            plan=plan,
            learner=learner,
            engine=engine,
            collector=collector,
            weight_sync=weight_sync,
            saving=self.saving,
        )

    def begin(self) -> None:
        """Announce the run to the screen and the hooks."""
        rollouts = self.plan.rollouts
        self.screen.start(
            self.plan.stop.steps,
            self.progress.step,
            self.plan.evaluation.split,
            temperature=None if rollouts.temperature else rollouts.sampling.temperature,
            best_reward=best_reward(self.collector.environments),
            may_end_early=self.plan.stop.may_end_early,
            accuracy=self.plan.stop.accuracy,
        )
        self.hooks.emit(
            RunStart(
                run=self.folder.name,
                folder=str(self.folder.path),
                step=self.progress.step,
                recipe=self.plan.record,
                steering=self.steering.asked,
            )
        )

    def complete(self, step: int, collected: Collected) -> None:
        """Advance the run by one step, and record the outcomes in the curriculum."""
        self.progress.complete(step, (*collected.tried, *collected.wasted))
        self.collector.complete({group.index: success_of(group) for group in collected.tried})
        self.steering.note_stop()

    def end(self, error: BaseException | None = None, summary: Any = None) -> None:
        """Tell the hooks how the run ended: ``finished``, ``interrupted`` or ``failed``."""
        status = "interrupted" if isinstance(error, Interrupted) else "failed"
        self.hooks.emit(
            RunEnd(
                folder=str(self.folder.path),
                step=self.progress.step,
                status=status if error else "finished",
                error=text_of(error) if error else "",
                summary=summary or {},
            )
        )

    def close(self) -> None:
        """Report and close the hook plugins, and end the thread of updates."""
        self.record.close()
        self.update.close()

    def summary(self, *, after: Mapping[str, Any], stopped: str) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        progress = self.progress
        return {
            "run": self.folder.name,
            "environments": list(self.plan.tasks.labels),
            "model": self.plan.model.name,
            "algorithm": self.plan.algorithm_label,
            "seed": self.plan.seed,
            "steps": progress.step,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "stopped": stopped,
            "held_out": {"before": self.held_out.before, "after": dict(after)},
            "failures": self.record.failures,
            "sampling": sampling(self.folder.metrics()),
            "seconds": {**progress.seconds, "total": sum(progress.seconds.values())},
        }
