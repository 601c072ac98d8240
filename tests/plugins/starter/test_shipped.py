"""The default model of `arithmetic` that comes with quintain-starter: found by its data, reproduced
bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from quintain.cli import main
from quintain.console import Screen
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain.recipe.extends import bundled_text
from quintain_env_math.arithmetic import NAMES, OWN_WORDINGS, REQUEST, WORDINGS, Arithmetic, worked
from quintain_starter.source import SHIPPED, DefaultModel


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def folder_of(*overrides: str) -> Path:
    """The folder that the quickstart with *overrides* begins with; no model may be trained here."""
    recipe = Recipe.parse(bundled_text("quickstart"), overrides)
    source = ModelSource.of(recipe)
    assert isinstance(source, DefaultModel)
    return source.train_once(ModelRequest.of(recipe, Screen(quiet=True)))


def test_the_quickstart_begins_with_the_shipped_model() -> None:
    """If it does not: `OMP_NUM_THREADS=1 quintain start arithmetic --fresh`, then copy the folder
    that it names.
    """
    assert folder_of().parent == SHIPPED


def test_a_run_of_another_seed_begins_with_it_too() -> None:
    """A model does not depend on the seed of the run that trains it further: no other one is
    trained in silence.
    """
    assert folder_of() == folder_of("run.seed=1")


@pytest.mark.more
@pytest.mark.parametrize(
    "change",
    ["model.start.args.seed=1", "environments.0.args.slips=0.5", "model.start.args.settle=3"],
)
def test_other_settings_have_other_models(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trained(Exception):
        """Training began."""

    def begin(*args: object, **settings: object) -> None:
        raise Trained

    monkeypatch.setattr(DefaultModel, "_train", begin)
    with pytest.raises(Trained):
        folder_of(change)


def test_the_commands_name_the_environment_of_the_quickstart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`train arithmetic`, `train --env arithmetic` and `start arithmetic` mean it with the
    quickstart's arguments.
    """
    shown = []
    for words in (["train", "arithmetic"], ["train", "--env", "arithmetic"]):
        assert main([*words, "--dry-run"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert main(["start", "arithmetic", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["path"]).parent == SHIPPED


def test_wordings_hold_their_numbers_and_replies_their_answers() -> None:
    """Numbers of any length, in every wording, with and without the request for the marker."""
    environment = Arithmetic(operations="+-*", levels=(1, 2, 3), reworded=0.9, size=400)
    tasks = list(environment.tasks("dev"))
    forms = {
        wording.format(a=t.a, b=t.b, sign=t.operation, name=NAMES[t.operation]): wording
        for t in tasks
        for wording in (*WORDINGS, *OWN_WORDINGS[t.operation])
    }

    assert tasks == list(environment.tasks("dev"))
    prompts = [str(t.prompt).removesuffix(f"\n{REQUEST}") for t in tasks]
    assert {*WORDINGS, *(w for own in OWN_WORDINGS.values() for w in own)} == {
        forms[prompt] for prompt in prompts
    }
    assert 0.3 < sum(str(t.prompt).endswith(REQUEST) for t in tasks) / len(tasks) < 0.7
    assert {(1, 3), (3, 1), (2, 2)} <= {
        (len(str(t.a)), len(str(t.b))) for t in tasks if t.operation == "+"
    }
    for task in tasks:
        assert worked(task).endswith(f"\n#### {task.answer}")


@pytest.mark.slow
def test_it_is_what_start_writes(tmp_path: Path) -> None:
    """On the processor and with the torch that trained it, to the last bit."""
    (shipped,) = SHIPPED.iterdir()
    made = json.loads((shipped / "quintain.json").read_text())["trained_on"]
    here = {
        "torch": torch.__version__,
        "threads": 1,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    if made != here:
        pytest.skip(f"it was trained on {made}, this is {here}")
    words = [sys.executable, "-m", "quintain", "start", "arithmetic", "--fresh", "--json"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}

    ended = subprocess.run(
        words, capture_output=True, text=True, env=environ, timeout=3000, cwd=tmp_path
    )

    assert ended.returncode == 0, ended.stderr
    fresh = Path(json.loads(ended.stdout)["path"])
    assert fresh.is_relative_to(tmp_path / "cache")
    assert (shipped / "model.safetensors").read_bytes() == (
        fresh / "model.safetensors"
    ).read_bytes()
