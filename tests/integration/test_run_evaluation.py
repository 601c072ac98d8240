"""Runs that are evaluated on other environments than they train on, beside a player of another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.errors import UsageError
from quintain.training import Recipe
from quintain.training.resolve import pinned
from quintain.training.run_folder import RunFolder
from quintain.training.summary import evaluation_of

from ..core.models import save_tiny

RECIPE = """
[run]
steps = 1
[model]
name = "model"
[[environments]]
use = "tests.integration.letters:Letters"
[algorithm]
use = "grpo"
[sampling]
max_tokens = 4
[batch]
prompts = 2
group_size = 2
[evaluation]
every = 1
tasks = 3
[evaluation.test]
tasks = 2
"""
OTHERS = """
[[evaluation.environments]]
use = "tests.integration.letters:Letters"
name = "longer"
split = "test"
tasks = 5
args = { size = 7 }

[[evaluation.environments]]
use = "tests.integration.rivals:Rivals"
name = "against-first"
weight = 0
tasks = "all"
args = { size = 4 }

[services.rival]
use = "embedded"
args = { model = "first", slots = 4 }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_tiny(tmp_path / "model", context=128)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(RECIPE)
    (tmp_path / "second.toml").write_text(RECIPE + OTHERS)
    return tmp_path


def test_a_run_is_evaluated_on_other_environments_and_against_an_earlier_run(place: Path) -> None:
    assert 0 == main(["train", "first.toml", "--name", "first", "-q"])
    assert 0 == main(["train", "second.toml", "--name", "second", "-q"])

    written = RunFolder("runs/second", lock=False)
    begin, end = written.metrics()
    for name in ("longer", "against-first"):
        assert 0 <= end[f"held_out.{name}.accuracy"] <= 1
    assert begin["held_out.tasks"] == end["held_out.tasks"] == 5 + 4
    assert end["held_out.accuracy"] == end["held_out.longer.accuracy"]
    assert 2 + 2 == json.loads((place / "runs/second/summary.json").read_text())["held_out"]["after"]["tasks"]
    recipe = Recipe.parse(written.recipe())
    assert "quintain/embedded" == recipe.services["rival"].use
    assert "runs/first/checkpoints/step-000001/model" == recipe.services["rival"].args["model"]


def test_the_next_command_names_the_engine_of_another_player(place: Path) -> None:
    recipe = RECIPE.replace("letters:Letters", "rivals:Rivals") + OTHERS[OTHERS.index("[services.rival]") :]
    (place / "runs/third").mkdir(parents=True)
    (place / "runs/third/recipe.toml").write_text(recipe.replace('"first"', '"model"'))

    words = evaluation_of(RunFolder("runs/third", lock=False))

    at = words.index("--service")
    assert ["--service", "rival=embedded", "--service-arg", 'rival.model="model"'] == words[at : at + 4]


def test_an_evaluated_environment_is_checked_before_the_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = "--set=evaluation.environments=[{use='tests.integration.letters:Letters', args={sise=3}}]"

    assert 2 == main(["train", "first.toml", "--dry-run", key])
    assert "has no argument 'sise'; did you mean 'size'?" in capsys.readouterr().err


def test_every_weight_is_not_zero(place: Path) -> None:
    with pytest.raises(UsageError, match="every weight of"):
        Recipe.load("first.toml", ["evaluation.environments=[{use='a', weight=0}]"])


def test_the_recipe_of_the_run_has_full_names(place: Path) -> None:
    recipe = Recipe.load("first.toml", ["evaluation.environments=[{use='arithmetic', reward='math_equal'}]"])

    (table,) = pinned(recipe).evaluation.environments
    assert ("quintain-env-math/arithmetic", 'use("quintain-math-verify/math_equal")') == (table.use, table.reward)
