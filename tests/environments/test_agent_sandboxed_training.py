"""Training with an agent in boxes, as docs/gateway.md shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli import main

from ..core.models import save_tiny
from ..docs.pages import page
from ..plugins.sandbox_service import left_behind, started

SMALL = {
    "model.dtype": "float32",
    "learner.precision": "float32",
    "sampling.max_tokens": "8",
    "batch.prompts": "2",
    "batch.group_size": "4",
    "evaluation.tasks": "4",
    "evaluation.test.tasks": "4",
}


@pytest.mark.slow
def test_the_page_shows_a_recipe_that_trains_in_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of the page with a tiny model in place of the default one: two steps, every rollout valid."""
    for _ in started("bubblewrap", slots=1):  # skips the test where it cannot start
        pass
    for block in page("docs/gateway.md").blocks:
        if block.file.startswith("boxed"):
            (tmp_path / block.file).write_text(block.text)
    save_tiny(tmp_path / "model", context=128)
    monkeypatch.chdir(tmp_path)
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]

    assert main(["train", "boxed.toml", "--model", "model", "--steps", "2", "--json", *sets]) == 0

    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["samples"]) == (2, 16)
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert all(row.get("mismatch.max", 0) < 1e-3 for row in rows)
    assert all(row.get("engine.stalls", 0) == 0 for row in rows)
    assert not left_behind(None)
