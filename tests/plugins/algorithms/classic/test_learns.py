"""Each row teaches a model of 36,000 parameters something within seconds, and a run of it resumes
bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintain.console.screen import Screen
from quintain.recipe.check import check_recipe
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder

from ....core.learning import learns
from ....lanes import mostly_slow

pytestmark = pytest.mark.usefixtures("no_curves")

CHANGES: dict[str, dict[str, Any]] = {
    "ppo": {
        "services": {"critic": {"use": "critic", "args": {"lr": 3e-3, "epochs": 2}}},
        "learner__lr": 6e-3,
    },
    "trpo": {
        "algorithm__args": {"optimizer_step": {"iterations": 6, "delta": 0.1, "damping": 0.03}}
    },
    "vineppo": {"algorithm__args": {"advantage": {"size": 2, "rollouts": 2}}, "learner__lr": 6e-3},
}
STEPS = {"ppo": 6, "trpo": 5, "vineppo": 4}
"""Larger steps than the rows' own, so that few do: with their own settings and a critic at 3e-3, 12
are enough.
"""


@pytest.mark.more
@pytest.mark.parametrize("seed", learns.SEEDS)
@pytest.mark.parametrize("name", mostly_slow(CHANGES, ["vineppo"]))
def test_success_rises(name: str, seed: int) -> None:
    before, after = learns.rises(name, seed, steps=STEPS[name], **CHANGES[name])
    assert after >= before + 0.1


def recipe(name: str, steps: int) -> Recipe:
    made = Recipe.of(
        {
            "run": {"steps": steps, "seed": 5},
            "model": {"name": str(learns.tiny_folder()), "device": "cpu"},
            "environments": [{"use": f"{learns.__file__}:Babble"}],
            "algorithm": {"use": name},
            "sampling": {"max_tokens": 16},
            "batch": {"prompts": 3, "group_size": 3},
            "learner": {"lr": 3e-3},
            "evaluation": {"every": 0, "test": {"tasks": 2}},
            "rollouts": {"keep": "none"},
        }
    )
    return made.replace({key.replace("__", "."): value for key, value in CHANGES[name].items()})


def metrics(path: Path) -> list[dict[str, Any]]:
    """Without what a clock says."""
    records = RunFolder.open(path, lock=False).metrics()
    return [
        {k: v for k, v in r.items() if "seconds" not in k and "per_second" not in k}
        for r in records
    ]


def run(path: Path, name: str, *steps: int) -> list[dict[str, Any]]:
    """To some steps, then from a checkpoint to more."""
    with RunFolder.create(path, recipe(name, steps[-1]).to_toml()) as folder:
        for until in steps:
            run_training(recipe(name, until), folder, Screen(quiet=True))
    return metrics(path)


@pytest.mark.parametrize("name", mostly_slow(CHANGES, ["ppo"]))
def test_a_run_resumes_from_a_checkpoint_bit_for_bit(name: str, tmp_path: Path) -> None:
    check_recipe(recipe(name, 3))
    whole, resumed = run(tmp_path / "whole", name, 3), run(tmp_path / "resumed", name, 2, 3)
    assert len(whole) == 4
    assert whole == resumed
    told = {"ppo": "critic.loss", "trpo": "natural.kl", "vineppo": "vine.continuations"}[name]
    assert all(step[told] > 0 for step in whole[1:])
    if name == "vineppo":
        assert all(step["vine.failed"] == 0 for step in whole[1:])
