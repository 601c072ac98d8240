"""Options that users of other trainers type: they work, or the error has the words that do."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import click
import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.cli.train import REPLACEMENTS as OF_TRAIN
from quintain.cli.train import train
from quintain_authoring.evaluate.command import REPLACEMENTS as OF_EVAL


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ("train --num_generations 8", "write --set batch.group_size=8"),
        ("train --batch-size=4", "write --set batch.prompts=4"),
        ("train --lora", "write --set model.lora.r=16"),
        ("train --lora-r 8", "write --set model.lora.r=8"),
        ("train gsm8k --max_steps 100", "write --steps 100"),
        ("train --output_dir out", "write --folder out"),
        ("train --output_dir 'my dir'", "write --folder 'my dir'"),
        ("train --learning-rate 1e-4", "write --lr 1e-4"),
        ("train --epochs 3", "write --steps N"),
        ("train --beta 0.04", "coefficient = 0.04 }'"),
        ("train --beta", "coefficient = VALUE }'"),
        ("eval dataset --path qa.jsonl", "write --arg path=qa.jsonl"),
    ],
)
def test_the_error_names_the_words_that_do_the_same(
    words: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) == 2
    assert form in capsys.readouterr().err


def test_a_recipe_named_like_an_environment_names_the_words_for_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The recipe `code` trains on generated functions, which read no file."""
    assert main(["train", "code", "--arg", "data=rows.jsonl", "--dry-run"]) == 2
    assert "for the environment 'code' write --env code instead of code" in capsys.readouterr().err
    assert main(["train", "code", "--arg", "dta=rows.jsonl", "--dry-run"]) == 2
    assert "no argument 'dta'" in capsys.readouterr().err
    row = {"prompt": "Write add(a, b).", "tests": ["assert add(1, 2) == 3"]}
    Path("rows.jsonl").write_text(
        "".join(json.dumps({**row, "split": split}) + "\n" for split in ("train", "dev", "test"))
    )
    words = ["--arg", "data=rows.jsonl", "--dry-run"]
    assert main(["train", "--env", "code", *words]) == 0, capsys.readouterr().err


@pytest.mark.more
def test_the_words_are_options_and_keys_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Each form of `train` with a value is accepted by a dry run, except those for a reader to
    complete.
    """
    for form in OF_TRAIN.values():
        words = shlex.split(form.format(8).partition(" (")[0])
        if (
            words[-1] in ("N", "path=8", "data=8", "learner.token_budget=TOKENS")
            or words[0] == "--tracker"
        ):
            continue
        assert main(["train", *words, "--dry-run"]) == 0, (form, capsys.readouterr().err)
    assert {"--steps", "--lr", "--tracker", "--arg", "--set", "--folder"} <= {
        name
        for parameter in train.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }
    assert OF_EVAL.keys() >= {"path"}


def test_lr_and_algorithm_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--lr", "1e-4", "--algorithm", "rloo", "--dry-run"]) == 0
    recipe = tomllib.loads(capsys.readouterr().out)
    assert recipe["learner"]["lr"] == 1e-4
    assert recipe["algorithm"]["use"] == "rloo"
    assert main(["train", "--algorithm", "rlo", "--dry-run"]) == 2
    assert "did you mean 'rloo'" in capsys.readouterr().err


@pytest.mark.more
def test_a_very_high_learning_rate_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--lr", "1", "--dry-run"]) == 0
    assert (
        "warning: learner.lr = 1 is very high; usual are 1e-6 to 1e-4, as in --lr 1e-5"
        in capsys.readouterr().err
    )
    assert main(["train", "arithmetic", "--dry-run"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_the_model_of_a_recipe_may_be_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a run stands for the model of its checkpoint, as with `--model`; this one has
    none yet.
    """
    (tmp_path / "runs" / "chat-1").mkdir(parents=True)
    (tmp_path / "runs" / "chat-1" / "recipe.toml").write_text(
        '[[environments]]\nuse = "arithmetic"\n'
    )
    (tmp_path / "next.toml").write_text('extends = "quickstart"\n[model]\nname = "runs/chat-1"\n')

    assert main(["train", "next.toml", "--dry-run", "--json"]) == 1
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert "run 'chat-1' has no checkpoint yet" in message


def test_a_name_without_an_owner_is_no_run_and_no_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--model", "gpt2", "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert "no run 'gpt2'" in message
    assert "no folder of that name either; for a model of the hub write owner/model" in message
