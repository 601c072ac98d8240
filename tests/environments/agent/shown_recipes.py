"""Recipes of the pages about agents, trained with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main

from ...core.models.tiny import save_tiny
from ...docs.pages import page

SMALL = {
    "model.dtype": "float32",
    "learner.precision": "float32",
    "sampling.max_tokens": "8",
    "batch.prompts": "2",
    "batch.group_size": "4",
    "evaluation.tasks": "4",
    "evaluation.test.tasks": "4",
}


def two_steps(
    shown: str,
    recipe: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    context: int,
) -> list[dict[str, Any]]:
    """Train *recipe* of the page *shown* for two steps in *folder*: every rollout is valid. Its
    metrics.

    Files of the page that belong to another recipe are written, too, and not used.
    """
    for block in page(shown).blocks:
        if block.file:
            (folder / block.file).write_text(block.text)
    save_tiny(folder / "model", context=context)
    monkeypatch.chdir(folder)
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    assert (
        main(["train", f"{recipe}.toml", "--model", "model", "--steps", "2", "--json", *sets]) == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["steps"] == 2
    assert summary["samples"] == 16
    (metrics,) = (folder / "runs").glob("*/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()]
