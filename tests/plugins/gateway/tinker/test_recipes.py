"""Recipes of `tinker_cookbook`, unmodified, against a server of this process.

The table of ``docs/tinker.md`` has longer runs of these, and of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .cookbook import END, MODEL, cookbook_python, run_program

pytestmark = pytest.mark.ci

NAME = f"model_name={MODEL}"
OURS = ("lora_rank=4", "learning_rate=1e-2", "eval_every=0", "save_every=0")
REPLACED = "behavior_if_log_dir_exists=delete"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return cookbook_python(tmp_path_factory.mktemp("cookbook"))


def rows(folder: Path, name: str, split: str, values: list[Any]) -> None:
    """A folder that stands where a recipe loads a data set of this name."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(value) + "\n" for value in values)
    (folder / name / f"{split}.jsonl").write_text(lines)


def ran(python: str, folder: Path, module: str, *options: str) -> list[Mapping[str, Any]]:
    """The metrics of a recipe, by step."""
    recipe = (
        f"runpy.run_module('tinker_cookbook.recipes.{module}', run_name='__main__', alter_sys=True)"
    )
    words = [python, "-c", f"import os, runpy, sys; {recipe}; {END}", NAME]
    status, out = run_program(folder, lambda _: [*words, f"log_path={folder / 'log'}", *options])
    assert status == 0, out
    lines = (folder / "log" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_supervised_training_lowers_the_loss(python: str, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "aaaaaaaa"}]
    for split in ("train", "test"):
        rows(tmp_path, "HuggingFaceH4/no_robots", split, [{"messages": talk}] * 12)
    options = ("batch_size=2", "lora_rank=4", "learning_rate=1e-2", "max_steps=6", "save_every=3")
    metrics = ran(python, tmp_path, "sl_loop", *options, "max_length=128")
    losses = [row["train_mean_nll"] for row in metrics if "train_mean_nll" in row]
    assert len(losses) == 6
    assert losses[-1] < 0.7 * losses[0]


def test_reinforcement_learning_samples_and_trains(python: str, tmp_path: Path) -> None:
    """Log-probs of sampling and of training are the same numbers."""
    options = (
        "env=arithmetic",
        "loss_fn=importance_sampling",
        "groups_per_batch=2",
        "group_size=2",
    )
    metrics = ran(
        python, tmp_path, "math_rl.train", *options, "max_tokens=4", "max_steps=2", *OURS, REPLACED
    )
    steps = [row for row in metrics if "env/all/reward/total" in row]
    assert len(steps) == 2
    assert all(abs(row["optim/kl_sample_train_v1"]) < 1e-4 for row in steps)


def test_preferences_are_learned_by_a_loss_of_the_client(python: str, tmp_path: Path) -> None:
    """DPO computes its loss itself, and sends the gradient."""
    pair = {
        "chosen": "\n\nHuman: say\n\nAssistant: aa",
        "rejected": "\n\nHuman: say\n\nAssistant: bb",
    }
    for split in ("train", "test"):
        rows(tmp_path, "Anthropic/hh-rlhf", split, [pair] * 8)
    options = ("batch_size=2", "max_length=128", "learning_rate=1e-3", "max_steps=4", REPLACED)
    metrics = ran(python, tmp_path, "preference.dpo.train", *options)
    losses = [row["dpo_loss"] for row in metrics if "dpo_loss" in row]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0]


def test_a_teacher_on_the_server_is_distilled(python: str, tmp_path: Path) -> None:
    rows(tmp_path, "zwhe99/DeepMath-103K", "train", [{"question": "1 + 1?"}] * 8)
    options = (f"teacher_model={MODEL}", "groups_per_batch=2", "group_size=2", "max_tokens=4")
    metrics = ran(
        python,
        tmp_path,
        "distillation.on_policy_distillation",
        *options,
        "max_steps=2",
        *OURS,
        REPLACED,
    )
    distances = [row["teacher_kl"] for row in metrics if "teacher_kl" in row]
    assert distances[0] == pytest.approx(0.0, abs=1e-4)
