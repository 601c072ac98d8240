"""Hooks of a run: tell judges the step, raise their alerts, and write their counts to ``judge.jsonl`` in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .running import RUNNING

FILE = "judge.jsonl"
_folder: list[Path] = []


def drop_later(path: Path, step: int) -> None:
    """Drop the lines of a file of JSON lines that come after *step*: a resume repeats those steps."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8")


def quintain_on_run_start(event: Any) -> None:
    """Remember the folder, and tell the judges the first step."""
    _folder[:] = [Path(event.folder)]
    drop_later(_folder[0] / FILE, event.step)
    for judge in RUNNING:
        judge.step = event.step + 1


def quintain_on_step_measured(event: Any) -> None:
    """Raise the alerts of the judges."""
    for judge in RUNNING:
        if judge.alert:
            event.alerts["judge_canaries"] = judge.alert


def quintain_on_step_end(event: Any) -> None:
    """Write a line with the counts so far, and advance the judges' step."""
    for number, judge in enumerate(RUNNING):
        judge.step = event.step + 1
        if _folder and not judge.offline:
            row = {"step": event.step, "judge": number, **judge.metrics()}
            with (_folder[0] / FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
