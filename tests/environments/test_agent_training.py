"""docs/agents.md: training through the gateway with an agent of a framework that knows nothing of Quintain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.training.recipe.load import bundled

from ..core.models import save_tiny
from ..docs.pages import page

SMALL = {
    "model.dtype": "float32",
    "learner.precision": "float32",
    "sampling.max_tokens": "8",
    "batch.prompts": "2",
    "batch.group_size": "4",
    "evaluation.tasks": "4",
    "evaluation.test.tasks": "4",
}


def test_each_way_is_shown_in_less_than_sixty_lines() -> None:
    """Files and commands of a section: the program, its tasks, the recipe, what to type."""
    text = page("docs/agents.md").text
    sections = text.split("\n## ")[1:]
    shown = [re.findall(r"^```(?:python|toml|bash)\n(.*?)^```", section, re.M | re.S) for section in sections]

    assert len(sections) == 2
    assert all(0 < sum(block.count("\n") for block in blocks) < 60 for blocks in shown)


def test_the_recipe_of_search_is_the_bundled_one() -> None:
    """The page shows it whole."""
    assert bundled("search") in [block.text for block in page("docs/agents.md").blocks]


@pytest.mark.slow
def test_the_page_shows_a_recipe_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of docs/agents.md with a tiny model in place of the default one: two steps, every rollout valid."""
    pytest.importorskip("agents", reason="openai-agents is not installed (extra dev)")
    for block in page("docs/agents.md").blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    save_tiny(tmp_path / "model", context=1024)
    monkeypatch.chdir(tmp_path)
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]

    assert main(["train", "agent.toml", "--model", "model", "--steps", "2", "--json", *sets]) == 0

    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["samples"]) == (2, 16)
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert all(row.get("mismatch.max", 0) < 1e-3 for row in rows)
