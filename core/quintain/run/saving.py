"""The checkpoints of a run: what is in one, and when there must be none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ..interfaces.events import CheckpointSaved
from ..interfaces.learner import AnyLearner
from ..services.manager import copy_of_state, states
from ..store.best import HeldOutScore
from ..store.checkpoint import (
    OPEN,
    Checkpoint,
    CheckpointManager,
    random_states,
    restore_random_states,
)
from .collect import Collector
from .held_out import HeldOutEvaluation
from .hooks import Hooks
from .progress import RunProgress
from .record import RunRecord
from .steering import RunSteering
from .weight_sync import WeightSync


@dataclass(kw_only=True)
class Saving:
    """Saves all that a resume needs, after a complete step.

    Attributes:
        best: what the evaluation of the best saved checkpoint found.
        recorded: false in an update, when a checkpoint would have half a step.
        before_step: the state of curriculum and services before a step that an error ended; a
            checkpoint has it instead of the state of now.
    """

    checkpoints: CheckpointManager
    learner: AnyLearner
    collector: Collector
    weight_sync: WeightSync
    progress: RunProgress
    held_out: HeldOutEvaluation
    steering: RunSteering
    record: RunRecord
    hooks: Hooks
    best: HeldOutScore | None = None
    recorded: bool = True
    before_step: dict[str, Any] | None = None

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Restore the state before the block in the random generators and the next checkpoint if an
        error ends it.

        A collector that keeps unfinished work has the state of now in the next checkpoint.
        """
        before = self._state_of_sampling(copied=True)
        drawn = random_states()
        try:
            yield
        except BaseException:
            self.before_step = None if self.collector.saves_unfinished else before
            restore_random_states(drawn)
            raise

    @contextmanager
    def indivisible(self) -> Iterator[None]:
        """Save nothing if an error ends the block: a resume continues from the last checkpoint."""
        self.recorded = False
        yield
        self.recorded = True

    def save(self, *, wait: bool = False) -> None:
        """Save a checkpoint of the last complete step, unless it is saved already; *wait* until it
        is complete. Else a learner may still write it, and `announce` says when it is complete.
        """
        self.announce(wait=True)
        step = self.progress.step
        if not self.recorded or not step or self.checkpoints.has(step):
            return
        # These very weights, or none.
        measured = self.held_out.found if self.held_out.measured == step else None
        by = measured.better_by(self.best) if measured else ""
        if measured and by:
            self.best = measured.after(self.best)
        about = {
            "best_by": by,
            "held_out": measured and asdict(measured),
            OPEN: bool(self.record.open),
        }
        with self.progress.clock("checkpoint"):
            self.checkpoints.begin(
                step, learner=self.learner, state=self._state(), best=bool(by), about=about
            )
        self.announce(wait=wait)

    def announce(self, *, wait: bool = False) -> None:
        """Complete the checkpoint that is being written, if it is written by now, and tell the
        hooks; *wait* until it is.
        """
        self.tell(self.checkpoints.complete(wait=wait))

    def tell(self, saved: Checkpoint | None) -> None:
        """Tell the hooks of a complete checkpoint, if there is one."""
        if saved is not None:
            self.hooks.emit(CheckpointSaved(step=saved.step, path=str(saved.path), best=saved.best))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; services restored their states when they started.

        Raises:
            RunError: a file of the run is damaged.
        """
        content = checkpoint.restore(self.learner)
        counters = content["run"]
        for name, value in counters["progress"].items():
            setattr(self.progress, name, value)
        self.held_out.restore(counters["held_out"])
        self.best = counters["best"] and HeldOutScore(**counters["best"])
        self.collector.curriculum.restore(content["curriculum"])
        self.collector.restore(content.get("queue", {}))
        self.steering.restore(counters["steered"])
        self.weight_sync.restore(content["published"])
        # checkpoints before 2026-11-30 have no step that is open
        self.record.restore(counters["failures"], counters.get(OPEN, {}))

    def _state(self) -> dict[str, Any]:
        counters = {
            "progress": asdict(self.progress),
            "held_out": self.held_out.state(),
            "best": self.best and asdict(self.best),
            "steered": self.steering.changed,
            "failures": self.record.failures,
            OPEN: self.record.open,
        }
        of_run = {"run": counters, "published": self.weight_sync.state()}
        return of_run | (self.before_step or self._state_of_sampling())

    def _state_of_sampling(self, *, copied: bool = False) -> dict[str, Any]:
        """Return what decides what is sampled next; *copied*: the next step changes nothing of it."""
        services = states(self.collector.rollout_context.services)
        return {
            "curriculum": self.collector.curriculum.state(),
            "queue": self.collector.state(),
            "services": copy_of_state(services) if copied else services,
        }
