"""Runs with the learner `fsdp`: from a recipe, resumed on as many ranks and on more, and killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quintain.cli import main
from quintain.recipe.extends import bundled_text
from quintain.recipe.memory import memory_of
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe

from ....core.models.tiny import tiny_model
from ....processes import ended, within
from ....small_run import small_recipe

SUMS = 'use = "arithmetic"'
LEARNER = '[checkpoint]\nevery = 2\n[learner]\nuse = "fsdp"\nlr = 1e-3\nargs = { ranks = 2 }'


def children(pid: int) -> list[int]:
    """Return the processes whose parent is *pid*, the eldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def ranks_of(run: int) -> list[int]:
    """Return the processes that the server of *run* has forked."""
    return [rank for child in children(run) for rank in children(child)]


def test_memory_on_paper_counts_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that of all ranks beside the weights of the run, on GPUs that of one rank."""
    module = tiny_model("qwen3")
    numbers = sum(p.numel() for p in module.parameters())

    def planned(ranks: int, sharding: str, *, gpu: bool = False) -> list[float]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        settings = ["algorithm.use=grpo", "learner.use=fsdp", f"learner.args.ranks={ranks}"]
        settings.append(f"learner.args.sharding={sharding}")
        plan = RunPlan.of(Recipe.parse(bundled_text("quickstart"), settings))
        memory = memory_of(plan, module, free=10**9)
        parts = (memory.weights, memory.gradients, memory.moments, memory.reference)
        return [part / numbers for part in parts]

    assert planned(4, "sharded") == [8, 4, 8, 4]
    assert planned(4, "replicated") == [20, 16, 32, 16]
    assert planned(4, "hybrid") == [12, 8, 16, 8]
    assert planned(4, "sharded", gpu=True) == [1, 1, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["whole", "sharded"])
@pytest.mark.usefixtures("no_curves")
def test_a_resumed_run_equals_one_that_was_not_stopped(
    checkpoint: str, small_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit on as many ranks; up to rounding on another number. Examples are imitated, so that
    every step moves the weights.
    """
    tables = LEARNER.replace("ranks = 2", f'ranks = 2, checkpoint = "{checkpoint}"')
    folder = small_run(small_recipe(SUMS, steps=4, algorithm="sft", tables=tables))
    monkeypatch.chdir(folder)
    assert main(["train", "recipe.toml", "-q", "--name", "whole"]) == 0
    for name in ("halves", "three"):
        shutil.copytree("runs/whole", f"runs/{name}")
        shutil.rmtree(f"runs/{name}/checkpoints/step-000004")
    assert main(["train", "--resume", "runs/halves", "-q"]) == 0
    recipe = Path("runs/three/recipe.toml")
    recipe.write_text(recipe.read_text().replace("ranks = 2", "ranks = 3"))
    assert main(["train", "--resume", "runs/three", "--force", "-q"]) == 0

    def weights(run: str, step: int = 4) -> dict[str, list[float]]:
        model = folder / f"runs/{run}/checkpoints/step-{step:06d}/model"
        files = [load_file(path) for path in sorted(model.glob("*.safetensors"))]
        return {name: t.flatten().tolist() for file in files for name, t in file.items()}

    parts = folder / "runs/whole/checkpoints/step-000004/parts"
    assert parts.exists() == (checkpoint == "sharded")
    assert weights("halves") == weights("whole") != weights("whole", 2)
    for name, values in weights("three").items():
        assert values == pytest.approx(weights("whole")[name], abs=1e-4)


@pytest.mark.slow
def test_a_run_that_loses_a_rank_ends_and_says_which(small_run: Callable[..., Path]) -> None:
    tables = LEARNER.replace("ranks = 2", "ranks = 2, restarts = 0")
    folder = small_run(small_recipe(SUMS, steps=10_000, tables=tables))
    run = subprocess.Popen(
        [sys.executable, "-m", "quintain", "train", "recipe.toml", "--name", "killed"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    metrics = folder / "runs/killed/metrics.jsonl"
    assert within(300, lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    ranks = ranks_of(run.pid)
    assert len(ranks) == 2
    os.kill(max(ranks), signal.SIGKILL)
    began = time.monotonic()
    output, _ = run.communicate(timeout=120)
    assert time.monotonic() - began < 60
    assert run.returncode == 1
    assert "the learner lost rank 1" in output
    assert "SIGKILL" in output
    assert all(within(10, lambda pid=pid: ended(pid)) for pid in ranks)


@pytest.mark.ci
def test_the_quickstart_trains_on_two_ranks(tmp_path: Path) -> None:
    """To the accuracy that it reaches on one."""
    words = "train --set learner.use=fsdp --set learner.args.ranks=2 --name run"
    done = subprocess.run(
        [sys.executable, "-m", "quintain", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/run/summary.json").read_text())
    assert summary["held_out"]["before"]["accuracy"] < 0.75
    assert summary["held_out"]["after"]["accuracy"] >= 0.90
