"""What a reader types off the README trains, with a small model in place of the default one."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.recipe.extends import bundled_text
from quintain.recipe.tables import Recipe

from ..core.models.tiny import save_tiny
from .pages import page

pytestmark = pytest.mark.usefixtures("no_curves")

SMALL = {
    "sampling.max_tokens": "8",
    "batch.prompts": "2",
    "batch.group_size": "4",
    "model.dtype": "float32",
    "learner.precision": "float32",
    "evaluation.tasks": "4",
    "evaluation.test.tasks": "4",
}


@pytest.fixture
def typed(desk: Path) -> Path:
    """The working directory of a reader who has saved the files of the README; a small model lies
    beside them.
    """
    for block in page("README.md").blocks:
        if block.file:
            (desk / block.file).write_text(block.text)
    save_tiny(desk / "model", context=128)
    return desk


@pytest.mark.more
def test_the_readmes_environment_trains(typed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--env reverse.py:Reverse` with the reward of the other file as shaping: two steps, and a
    summary.
    """
    shaping = """environments.0.shaping=0.2 * use("closeness.py:in_place")"""
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    words = [
        "--model",
        "model",
        "--env",
        "reverse.py:Reverse",
        "--set",
        shaping,
        "--steps",
        "2",
        "--json",
    ]
    status = main(["train", *words, *sets])

    summary = json.loads(capsys.readouterr().out)
    assert status == 0
    assert summary["steps"] == 2
    assert summary["samples"] == 16
    metrics = (typed / "runs" / "reverse-1" / "metrics.jsonl").read_text().splitlines()
    assert "reward.part.in_place.mean" in json.loads(metrics[-1])


@pytest.mark.more
def test_the_readmes_recipe_trains(typed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`coached.toml` with a small batch: two steps as it says, with what it leaves out as in the
    quickstart.
    """
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    status = main(["train", "coached.toml", "--model", "model", "--steps", "2", "--json", *sets])

    summary = json.loads(capsys.readouterr().out)
    assert status == 0
    assert summary["steps"] == 2
    assert summary["samples"] == 16
    recipe = Recipe.load(typed / "runs" / "reverse-1" / "recipe.toml")
    quickstart = Recipe.parse(bundled_text("quickstart"))
    assert recipe.learner.lr == quickstart.learner.lr
    assert recipe.sampling.temperature == 0.5
    metrics = (typed / "runs" / "reverse-1" / "metrics.jsonl").read_text().splitlines()
    assert "reward.part.in_place.mean" in json.loads(metrics[-1])


@pytest.mark.slow
def test_a_step_of_learning_is_seen_within_a_minute(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default model, as an author types it: the warm start ends at the first right answers."""
    pytest.importorskip("quintain_starter")
    monkeypatch.setenv("QUINTAIN_CACHE", str(desk / "cache"))
    written = page("docs/write-an-environment.md")
    (block,) = (b for b in written.blocks if b.file == "sorting.py")
    (desk / "sorting.py").write_text(block.text)
    (command,) = (
        c
        for b in written.blocks
        if b.language == "bash"
        for c in b.commands
        if "sorting.py:Sort" in c
    )
    before = time.process_time()

    assert main(shlex.split(command)[1:]) == 0

    assert time.process_time() - before < 60
    lines = (desk / "runs" / "sort-1" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["success"] > 0
