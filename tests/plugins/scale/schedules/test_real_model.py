"""Runs that sample ahead, on a real model: what each token's log-prob was recorded as is what the
weights of its version give it, by a plain forward pass of the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import Rollout
from quintain.cli import main
from quintain.learning import TrainingSequence
from quintain.models import load_model
from quintain.store import RunFolder, find_run
from quintain.store.storage import cache_folder

from ....small_run import small_recipe

FOLDER = cache_folder() / "models" / "smollm2-135m"
STEPS = 4
ENVIRONMENT = """
from quintain import Environment, Task, reward

@reward(range=(0, 1))
def vowels(rollout):
    return min(1, sum(c in "aeiou" for c in rollout.reply) / 40)

class Babble(Environment):
    reward = vowels
    def tasks(self, split):
        return [Task(prompt=f"Tell me about the number {n}.", answer=str(n)) for n in range(40)]
"""
SETTINGS = (
    "sampling.max_tokens=24",
    "model.lora={ r = 4, lora_alpha = 8 }",  # a quarter of the memory
    "learner.lr=3e-3",
    "engine.args.slots=4",
    "checkpoint.every=1",
    f"checkpoint.keep={STEPS}",
    "checkpoint.best=false",
)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"needs SmolLM2-135M in {FOLDER}")
@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("schedule", ["one_step_off", "areal"])
def test_recorded_log_probs_are_those_of_the_version_that_sampled(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = f'[schedule]\nuse = "{schedule}"'
    recipe = small_recipe('use = "babble.py:Babble"', model=FOLDER, tables=table, steps=STEPS)
    Path("recipe.toml").write_text(recipe)
    Path("babble.py").write_text(ENVIRONMENT)
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    assert main(["train", "recipe.toml", "--name", "run", "--quiet", *words]) == 0

    rows = [row for step in range(1, STEPS + 1) for row in rows_of(step)]
    present = {version for row in rows for version, on in pairs(row) if on}
    # some tokens are of older weights than those that they trained
    assert any(min(v for v, on in pairs(row) if on) < STEPS - 1 for row in rows_of(STEPS))
    assert len(present) > 1
    for version in sorted(present):
        apart = differences(rows, version)
        assert apart[version] < 1e-3
        assert apart.get(version - 1, 1.0) > 0.02


def pairs(row: TrainingSequence) -> Iterator[tuple[int, bool]]:
    return zip(row.versions, row.mask, strict=True)


def rows_of(step: int) -> list[TrainingSequence]:
    found = []
    for record in RunFolder(find_run("run", "runs"), lock=False).read_rollouts(step):
        rollout: Rollout[Any, Any] = Rollout.from_json(json.loads(record["rollout"]))
        found += rollout.transcripts[""].sequences()
    return found


def differences(rows: list[TrainingSequence], version: int) -> dict[int, float]:
    """How far recorded log-probs are from those of the weights *version*, at most, by the version of
    the tokens: this one and the one before.
    """
    saved = Path("runs/run/checkpoints") / f"step-{version:06d}" / "model"
    module: Any = load_model(saved if version else FOLDER, device="cpu", dtype="float32").module
    apart: dict[int, float] = {}
    for row in rows:
        if not {version - 1, version} & set(row.versions):
            continue
        with torch.no_grad():
            logp = module(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
        for k, (own, on) in enumerate(pairs(row)):
            if on and own in (version - 1, version):
                off = abs(float(logp[k - 1, row.ids[k]]) - row.logps[k])
                apart[own] = max(apart.get(own, 0.0), off)
    return apart
