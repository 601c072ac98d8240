"""trackio: a local dashboard with the interface of Weights & Biases; `trackio show` opens it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .tracker import TrackedRun, Tracker, imported


@dataclass(kw_only=True, eq=False)
class Trackio(Tracker):
    """Logs to the local database of trackio, or to a Hugging Face Space.

    Attributes:
        project: name of the project.
        space: id of a Space, ``owner/name``; empty: local only.
    """

    label: ClassVar[str] = "trackio"
    project: str = "quintain"
    space: str = ""
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        self._run = imported("trackio", "trackio").init(
            project=self.project,
            # trackio joins equal names
            name=run.tracker_id("trackio", lambda: f"{run.name}-{uuid.uuid4().hex[:6]}"),
            space_id=self.space or None,
            config=dict(run.recipe),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, status: str) -> None:
        # the run's own method leaves work for the end of the process
        imported("trackio", "trackio").finish()


tracker = Trackio()
