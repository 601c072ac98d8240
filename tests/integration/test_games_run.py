"""The recipes of the multi-turn worlds: each trains from prompt to update, and the default model learns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from quintain.training.build import run_training
from quintain.training.recipe.load import bundled
from quintain.training.recipe.tables import Recipe
from quintain.training.run_folder import RunFolder
from quintain.training.screen import Screen

from ..core.models import save_tiny

NAMES = ("guess", "maze", "duel", "tools", "returns")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=2048)


def trained(name: str, folder: Path, changes: list[str]) -> dict[str, Any]:
    recipe = Recipe.parse(bundled(name), changes)
    with RunFolder.create(folder, recipe.to_toml()) as run:
        return run_training(recipe, run, Screen(quiet=True))


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_of_each_recipe(name: str, model: Path, tmp_path: Path) -> None:
    """A random model plays, both sides of a game included, is scored, and is updated."""
    changes = [
        f"model.name={json.dumps(str(model))}",
        "model.device=cpu",
        "run.steps=2",
        "sampling.max_tokens=3",
        "batch={prompts=2, group_size=2}",
        "evaluation={every=2, tasks=2, test={tasks=2}}",
    ]
    trained(name, tmp_path / "run", changes)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [0, 1, 2] == [record["step"] for record in records]
    assert [0.0, 0.0] == [record["failed"] for record in records[1:]]
    assert all(math.isfinite(record["reward.mean"]) for record in records[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:4])
def test_the_default_model_learns_to_play(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`quintain train NAME`: held-out success rises by at least 15 points over 20 steps."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    trained(name, tmp_path / "run", ["run.steps=20", "evaluation.test.tasks=100"])
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    curve = [record["held_out.accuracy"] for record in records if "held_out.accuracy" in record]
    assert sum(curve[-2:]) / 2 >= curve[0] + 0.15, curve
