"""Weights & Biases. Without credentials (`wandb login`) the run is logged offline; `wandb sync`
uploads it later.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .tracker import TrackedRun, Tracker, imported


@dataclass(kw_only=True, eq=False)
class WeightsAndBiases(Tracker):
    """Logs to wandb.ai or a server of your own.

    Attributes:
        project, entity, group, tags: as in `wandb.init`.
        mode: ``online``, ``offline`` or ``disabled``; empty: `WANDB_MODE`, else online if there are
            credentials.
    """

    label: ClassVar[str] = "wandb"
    project: str = "quintain"
    entity: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    mode: str = ""
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        wandb = imported("wandb", "wandb")
        mode = (
            self.mode
            or os.environ.get("WANDB_MODE")
            or ("online" if wandb.login(prompt=False) else "offline")
        )
        self._run = wandb.init(
            project=self.project,
            entity=self.entity or None,
            group=self.group or None,
            tags=list(self.tags),
            name=run.name,
            config=dict(run.recipe),
            id=run.tracker_id("wandb", lambda: uuid.uuid4().hex[:8]),
            # parts of an offline run are joined when they are uploaded
            resume="allow" if mode == "online" else None,
            dir=str(run.folder),
            mode=mode,
            settings=wandb.Settings(silent=True),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status == "failed"))


tracker = WeightsAndBiases()
