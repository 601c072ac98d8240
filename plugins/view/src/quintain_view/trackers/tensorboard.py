"""TensorBoard: event files in the run folder. `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .tracker import TrackedRun, Tracker, imported


@dataclass(kw_only=True, eq=False)
class TensorBoard(Tracker):
    """Writes event files.

    Attributes:
        folder: name of the folder in the run folder.
    """

    label: ClassVar[str] = "tensorboard"
    folder: str = "tensorboard"
    _writer: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        imported("tensorboard", "tensorboard")
        writer = imported("torch.utils.tensorboard", "tensorboard").SummaryWriter
        # On a resume, TensorBoard discards the points after the last complete step.
        self._writer = writer(
            str(run.folder / self.folder), purge_step=run.step + 1 if run.step else None
        )
        self._writer.add_text("recipe", f"```\n{json.dumps(run.recipe, indent=2)}\n```", run.step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()


tracker = TensorBoard()
