"""The recipe of `story`: a resume with the scorer of the start, and a model that learns."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.console.screen import Screen
from quintain.recipe.extends import bundled_text
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder
from quintain_authoring.evaluate.like import settings_of

from ..core.models.tiny import save_tiny
from .recipes import brief, metrics_of, recipe_run

pytestmark = pytest.mark.usefixtures("no_curves")

TIMES = ("seconds", "per_second")


def recipe_of(*changes: str) -> Recipe:
    return Recipe.parse(bundled_text("story"), list(changes))


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of each step, times aside."""
    return [
        {k: v for k, v in record.items() if not any(t in k for t in TIMES)}
        for record in metrics_of(folder)
    ]


@pytest.mark.slow
def test_a_resumed_run_has_the_rewards_of_the_whole_one(tmp_path: Path) -> None:
    """The scorer of steps 3 and 4 is the policy before step 1, also where a checkpoint starts
    them.
    """
    model = save_tiny(tmp_path / "model", context=1024)
    recipe = recipe_of(
        *brief(model, tokens=6),
        "run.steps=4",
        "batch.group_size=4",
        'environments=[{use="quintain-env-story/story", system="", reward="plan_nats"}]',
        "learner.lr=0.05",
        "evaluation={every=4, tasks=2, test={tasks=2}}",
        "checkpoint={every=2, keep=9}",
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    with RunFolder.create(whole, recipe.to_toml()) as run:
        run_training(recipe, run, Screen(quiet=True))
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-000004")
    with RunFolder.open(resumed) as run:
        run_training(recipe, run, Screen(quiet=True))
    expected, found = records_of(whole), records_of(resumed)
    assert [record["step"] for record in found] == [0, 1, 2, 3, 4]
    assert expected == found
    rewards = [record["reward.mean"] for record in expected[1:]]
    assert all(math.isfinite(reward) for reward in rewards)
    assert len(set(rewards)) == 4
    assert all(record["failed"] == 0 for record in expected[1:])


LIKE = ["eval", "--like", "runs/story-1", "--samples", "1", "--temperature", "0", "--json"]


def trained(folder: Path, *changes: str) -> dict[str, Any]:
    """The held-out rewards of a run of two steps."""
    model = save_tiny(folder / "model", context=1024)
    few = (
        "batch.group_size=4",
        "learner.lr=0.05",
        "evaluation={every=0, tasks=2, test={tasks=3}}",
        "checkpoint.every=1",
    )
    recipe = recipe_of(*brief(model, tokens=6), *few, *changes)
    with RunFolder.create(folder / "runs" / "story-1", recipe.to_toml()) as run:
        summary = run_training(recipe, run, Screen(quiet=True))
    assert all(record["failed"] == 0 for record in metrics_of(folder / "runs" / "story-1")[1:])
    return {name: held_out["reward"] for name, held_out in summary["held_out"].items()}


@pytest.mark.more
def test_the_command_that_a_run_prints_scores_under_the_start_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`quintain eval` has no policy of a run: its scorer is the one that the checkpoint keeps, to
    the last digit.
    """
    monkeypatch.chdir(tmp_path)
    environment = '{use="quintain-env-story/story", args={boats=4}, system="", reward="plan_nats"}'
    rewards = trained(tmp_path, f"environments=[{environment}]")
    services = settings_of(RunFolder("runs/story-1", lock=False)).services
    assert services["scorer"].use == "quintain-rewards/frozen-model"
    capsys.readouterr()
    assert main(LIKE) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == pytest.approx(
        rewards["after"], abs=1e-6
    )
    assert main([*LIKE, "--service-arg", "scorer.slot=''"]) == 0
    assert json.loads(capsys.readouterr().out)["reward"] != pytest.approx(
        rewards["after"], abs=1e-3
    )


@pytest.mark.more
def test_self_certainty_trains_the_policy_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scorer follows the updates; the printed command gives the numbers of the run's model."""
    monkeypatch.chdir(tmp_path)
    rewards = trained(
        tmp_path,
        'environments=[{use="quintain-env-story/story", system="", reward="self_certainty"}]',
        'services.scorer={use="quintain-rewards/current-policy"}',
    )
    assert 0 < rewards["before"] != pytest.approx(rewards["after"], rel=0.01)
    capsys.readouterr()
    assert main(LIKE) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == pytest.approx(
        rewards["after"], abs=1e-5
    )


@pytest.mark.slow
def test_the_default_model_learns_to_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`quintain train story`: the share of held-out plans that help the frozen first policy rises
    by 40 points, and so does the yardstick by 0.2, at the temperature of training.
    """
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    summary, _ = recipe_run("story", tmp_path / "run")
    before, after = (summary["held_out"][name] for name in ("before", "after"))
    assert after["temperature"] == 0.7
    assert after["accuracy"] >= before["accuracy"] + 0.4
    assert after["yardstick"] >= before["yardstick"] + 0.2
