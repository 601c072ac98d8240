"""Runs that sample ahead, on a real model: what each token's log-prob was recorded as is what the
weights of its version give it, by a plain forward pass of the checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from quintain import Rollout
from quintain.cli import main
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

    found = RunFolder(find_run("run", "runs"), lock=False)
    sampled: dict[int, list[tuple[tuple[int, ...], int, float]]] = {}
    stale = 0
    for step in range(1, STEPS + 1):
        for row in found.read_rollouts(step):
            rollout = Rollout.from_json(json.loads(row["rollout"]))
            (sequence,) = rollout.transcripts[""].sequences()
            for k, on in enumerate(sequence.mask):
                if on:
                    version = sequence.versions[k]
                    stale += version < step - 1
                    place = (sequence.ids[: k + 1], k, sequence.logps[k])
                    sampled.setdefault(version, []).append(place)
    assert stale  # some tokens are of older weights than those that they trained
    assert len(sampled) > 1

    checkpoints = Path("runs/run/checkpoints")
    apart: dict[tuple[int, int], float] = {}
    for version, places in sampled.items():
        for weights in (version, version + 1):
            saved = checkpoints / f"step-{weights:06d}" / "model"
            module = load_model(saved if weights else FOLDER, device="cpu", dtype="float32").module
            apart[weights - version, version] = 0.0
            longest = [ids for ids, *_ in places]
            for ids in {
                i for i in longest if not any(i != j and j[: len(i)] == i for j in longest)
            }:
                with torch.no_grad():
                    logp = module(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
                for begun, k, recorded in places:
                    if ids[: k + 1] == begun:
                        off = abs(float(logp[k - 1, begun[k]]) - recorded)
                        apart[weights - version, version] = max(
                            apart[weights - version, version], off
                        )
    print({f"{v} at {v + d}": off for (d, v), off in sorted(apart.items())})
    assert max(off for (d, _), off in apart.items() if not d) < 1e-3
    assert min(off for (d, _), off in apart.items() if d) > 0.02
