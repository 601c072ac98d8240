"""Hooks of a run: write what the monitors measured at each evaluation, raise their alert, draw their curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .running import RUNNING

_folder: list[Path] = []


def quintain_on_run_start(event: Any) -> None:
    """Remember the folder; drop the rows of steps that a resume repeats."""
    _folder[:] = [Path(event.folder)]
    for number, monitor in enumerate(RUNNING):
        monitor.begin(event.step, split=event.recipe.get("evaluation", {}).get("split", "dev"))
        monitor.write(_folder[0], number)


def quintain_on_evaluation_end(event: Any) -> None:
    """Turn the rollouts of the evaluation into a row."""
    for number, monitor in enumerate(RUNNING):
        if monitor.close(event.step, event.split, event.environment) and _folder:
            monitor.write(_folder[0], number)


def quintain_on_step_measured(event: Any) -> None:
    """Raise the alert while the proxy is above and the gold reward below where gold was highest."""
    for monitor in RUNNING:
        if message := monitor.alert():
            event.alerts["overoptimisation"] = message


def quintain_on_run_end(event: Any) -> None:
    """Draw the curve of a run that has finished."""
    if event.status == "finished":
        for number, monitor in enumerate(RUNNING):
            monitor.draw(Path(event.folder), number)
