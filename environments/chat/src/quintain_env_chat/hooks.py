"""Hooks of a run: the history of evolving rubrics, as ``rubrics.jsonl`` in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quintain_judge import drop_later

from .running import RUNNING

FILE = "rubrics.jsonl"
_folder: list[Path] = []


def quintain_on_run_start(event: Any) -> None:
    """Remember the folder; drop what a step wrote that the run does not have."""
    _folder[:] = [Path(event.folder)]
    drop_later(_folder[0] / FILE, event.step)


def quintain_on_step_end(event: Any) -> None:
    """Append what happened to the rubrics in this step."""
    for library in RUNNING:
        if library.events and _folder:
            with (_folder[0] / FILE).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"step": event.step, **row}) + "\n" for row in library.events)
        library.events.clear()
