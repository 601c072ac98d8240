"""`quintain train arithmetic`: from nothing to a better model, on each of three seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "seed",
    # The model of seed 0 comes with its plugin; the others are trained first.
    [
        pytest.param(0, marks=pytest.mark.ci),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)),
    ],
)
def test_the_quickstart_ends_with_a_better_model(tmp_path: Path, seed: int) -> None:
    """With a cold cache sampled accuracy rises from below 75 to at least 90 %, on tasks that no
    training or stop saw.

    Greedy accuracy, which is beside it, rises from below 60 %, to at least as much.
    """
    environ = {**os.environ, "QUINTAIN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "2"}
    words = [
        sys.executable,
        "-m",
        "quintain",
        "train",
        "quickstart",
        "--seed",
        str(seed),
        "--name",
        "run",
    ]
    ended = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    before, after = (summary["held_out"][when] for when in ("before", "after"))

    assert before["accuracy"] < 0.75
    assert after["accuracy"] >= 0.90
    assert before["high"] < after["low"]
    assert after["temperature"] == 0.7
    assert after["other_decoding"]["temperature"] == 0.0
    assert before["other_decoding"]["accuracy"] < 0.60
    assert after["other_decoding"]["accuracy"] >= 0.90
    assert {"total", "model", "rollouts", "update"} <= set(summary["seconds"])
    assert 0 < summary["samples"] < summary["tokens"]
    for said in ("sampled at T 0.7", "greedy", "quintain chat", "curves.png"):
        assert said in ended.stdout
    if seed:  # the pages show the first one
        return
    for text, said in (("What is 58 plus 67?", "#### 125"), ("/task", "task 1: right; reward 1")):
        words = [sys.executable, "-m", "quintain", "chat", "run", "--once", text]
        ended = subprocess.run(
            words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )
        assert said in ended.stdout, ended.stderr
    words = ["sft", "run", "--model", "run", "--epochs", "1", "--out", "student"]
    ended = subprocess.run(
        [sys.executable, "-m", "quintain", *words], cwd=tmp_path, env=environ, timeout=300
    )
    assert ended.returncode == 0
    words = (
        "eval arithmetic --model student --arg levels=[1,2,3] --arg reworded=0.6 --tasks 200 --json"
    ).split()
    words = [sys.executable, "-m", "quintain", *words]
    ended = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
    )
    assert json.loads(ended.stdout)["pass@1"] >= 0.90, ended.stderr
