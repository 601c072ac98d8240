"""The names of a saved recipe: a plugin that is installed later changes neither the quickstart nor
a resume.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.recipe.resolve import pinned_recipe
from quintain.recipe.rewards import qualified
from quintain.recipe.tables import Recipe
from quintain.registry.discovery import Component
from quintain.registry.lookup import current, isolated
from quintain_view.viewer.runs import list_runs

from ...small_run import small_recipe

SHADOW = """
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"
[project]
name = "shadow"
version = "1.0"
[project.entry-points."quintain.environments"]
arithmetic = "shadow:Arithmetic"
[project.entry-points."quintain.rewards"]
format_tags = "shadow:format_tags"
[project.entry-points."quintain.algorithms"]
dr_grpo = "shadow:DR_GRPO"
grpo = "shadow:GRPO"
[project.entry-points."quintain.engines"]
embedded = "shadow:Engine"
[project.entry-points."quintain.learners"]
torch = "shadow:Learner"
[project.entry-points."quintain.models"]
default = "shadow:Default"
hf = "shadow:HF"
"""

RECIPE = small_recipe('use = "arithmetic"\nshaping = "0.5 * format_tags"')


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which another distribution has components with names of
    ours.
    """
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "src" / "shadow").mkdir(parents=True)
    (source / "src" / "shadow" / "__init__.py").write_text(
        "raise RuntimeError('nobody asked for it')\n"
    )
    (source / "pyproject.toml").write_text(SHADOW)
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)],
        check=True,
        capture_output=True,
    )
    return {**os.environ, "PYTHONPATH": str(target)}


COMMANDS = """
import contextlib, io, json, sys
from quintain.cli import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(words)
    print(json.dumps([status, err.getvalue()]))
"""


def quintain(place: Path, env: dict[str, str], *commands: list[str]) -> list[tuple[int, str]]:
    """Status and standard error of each command, in one process that has *env*."""
    words = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(
        words, cwd=place, env=env, capture_output=True, text=True, check=True, timeout=240
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.ci
def test_a_plugin_with_the_same_names_breaks_neither_quickstart_nor_resume(
    small_run: Callable[..., Path],
    shadowed: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Names of the quickstart and of a run's recipe have their distribution; a name just typed is
    still ambiguous.
    """
    folder = small_run(RECIPE)
    assert main(["train", "recipe.toml", "--name", "old", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["environments"] == ["arithmetic"]
    assert summary["algorithm"] == "grpo"
    (run,) = list_runs(folder / "runs")
    assert run.environments == ("arithmetic",)

    saved = Recipe.load(folder / "runs" / "old" / "recipe.toml")
    assert saved.environments[0].use == "quintain-env-math/arithmetic"
    assert saved.environments[0].shaping == '0.5 * use("quintain-rewards/format_tags")'
    assert saved.algorithm.use == "quintain/grpo"
    assert saved.engine.use == "quintain/embedded"
    assert saved.learner.use == "quintain/torch"

    resumed, quickstart, ambiguous = quintain(
        folder,
        shadowed,
        ["train", "--resume", "old", "--quiet"],
        ["train", "quickstart", "--dry-run"],
        ["eval", "arithmetic", "--engine", "@oracle"],
    )
    assert resumed[0] == 0, resumed[1]
    assert quickstart[0] == 0, quickstart[1]
    assert ambiguous[0] == 1
    assert "say which: 'quintain-env-math/arithmetic' or 'shadow/arithmetic'" in ambiguous[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", 'use("d/a")'),
        (" a +\n b ", 'use("d/a") +  use("d/b")'),
        (
            '0.1 * a(word="b", n=[-1, None]) - local',
            '0.1 * use("d/a")(word="b", n=[-1, None]) - local',
        ),
        ('a.clip(0, 1).gate(use("b"), at=0.5)', 'use("d/a").clip(0, 1).gate(use("d/b"), at=0.5)'),
        ('a(text="ä") * use("d/b")(n=1)', 'use("d/a")(text="ä") * use("d/b")(n=1)'),
        ("1.5", "1.5"),
    ],
)
def test_rewards_of_an_expression_are_qualified(text: str, expected: str) -> None:
    """Every reward of an expression gets its distribution; words, numbers and methods stay."""
    assert expected == qualified(
        text, lambda name: name if name == "local" or "/" in name else f"d/{name}"
    )


def test_services_and_the_model_are_named_too() -> None:
    """Services that an algorithm asks for by slot are in the saved recipe; files keep their
    names.
    """
    recipe = Recipe.of(
        {
            "environments": [{"use": "arithmetic"}],
            "algorithm": {"use": "ppo"},
            "batch": {"prompts": 2},
        }
    )
    saved = pinned_recipe(recipe)

    assert saved.model.name == "quintain-starter/default"
    assert saved.algorithm.use == "quintain-algorithms/ppo"
    assert {slot: table.use for slot, table in saved.services.items()} == {
        "critic": "quintain-algorithms/critic"
    }
    assert saved == pinned_recipe(saved)
    with isolated(
        *current().components(),
        Component(kind="service", name="critic", target="x:y", distribution="x"),
    ):
        assert saved == pinned_recipe(saved)
