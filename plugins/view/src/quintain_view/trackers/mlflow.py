"""MLflow: an SQLite file beside the run folders, or a tracking server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .tracker import TrackedRun, Tracker, flattened, imported

LONGEST_PARAMETER = 500
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


@dataclass(kw_only=True, eq=False)
class MLflow(Tracker):
    """Logs to an MLflow tracking store.

    Attributes:
        experiment: name of the experiment; it is created if missing.
        tracking_uri: of a server or database; empty: `MLFLOW_TRACKING_URI`, else ``mlflow.db``
            beside the run folder.
    """

    label: ClassVar[str] = "mlflow"
    experiment: str = "quintain"
    tracking_uri: str = ""
    _client: Any = field(default=None, init=False, repr=False)
    _run: str = field(default="", init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        # Without these, MLflow reports its use, and a call to a dead server takes minutes.
        defaults = {
            "DISABLE_TELEMETRY": "true",
            "HTTP_REQUEST_MAX_RETRIES": "2",
            "HTTP_REQUEST_TIMEOUT": "10",
        }
        for name, value in defaults.items():
            os.environ.setdefault(f"MLFLOW_{name}", value)
        # it reports each new table of a database
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        beside = f"sqlite:///{run.folder.parent / 'mlflow.db'}"
        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or beside
        self._client = client = imported("mlflow.tracking", "mlflow").MlflowClient(uri)
        existing = client.get_experiment_by_name(self.experiment)
        artifacts = f"file://{run.folder.parent / 'mlartifacts'}" if uri == beside else None
        experiment = (
            existing.experiment_id
            if existing
            else client.create_experiment(self.experiment, artifacts)
        )

        def create() -> str:
            created: str = client.create_run(experiment, run_name=run.name).info.run_id
            for name, value in flattened(run.recipe):
                client.log_param(created, name, str(value)[:LONGEST_PARAMETER])
            return created

        self._run = run.tracker_id("mlflow", create)
        client.update_run(self._run, status="RUNNING")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        metric, now = imported("mlflow.entities", "mlflow").Metric, int(time.time() * 1000)
        rows = [
            metric(re.sub(r"[^\w\-. :/]", "_", name), value, now, step)
            for name, value in metrics.items()
        ]
        self._client.log_batch(self._run, metrics=rows)

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._run, STATUS[status])


tracker = MLflow()
