"""The hooks that monitor a run: which alerts are active after each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain.store import RunFolder

from .conditions import ALERTS, History, MetricsRecord

__all__ = ["AlertMonitor"]


class AlertMonitor:
    """The alerts of a run.

    Its state depends only on the lines of ``metrics.jsonl``, so a resumed run restores it by
    reading them again.

    Args:
        records: the lines of ``metrics.jsonl`` so far.

    Attributes:
        active: the message of each active alert by its name, in the order of `ALERTS`.
    """

    def __init__(self, records: Iterable[MetricsRecord] = ()) -> None:
        self.history = History()
        self.active: dict[str, str] = {}
        for record in records:
            self.see(record)

    def see(self, record: MetricsRecord) -> dict[str, str]:
        """Take one more line of ``metrics.jsonl`` and return the active alerts."""
        self.history = self.history.then(record)
        levels = {alert: alert.level(self.history) for alert in ALERTS}
        self.active = {
            alert.name: alert.sentence(record)
            for alert, level in levels.items()
            if (level is not None and level >= 1)
            or (alert.name in self.active and (level is None or level > 0))
        }
        return self.active


_monitor = AlertMonitor()


def quintain_on_run_start(event: Any) -> None:
    """Start with the steps that the run has recorded."""
    global _monitor
    _monitor = AlertMonitor(RunFolder(event.folder, lock=False).metrics())


def quintain_on_step_measured(event: Any) -> None:
    """Raise the alerts that are active after this step."""
    event.alerts.update(_monitor.see({"step": event.step, **event.metrics}))
