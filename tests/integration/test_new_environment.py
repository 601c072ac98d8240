"""`quintain new environment`: the first thing that an author trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("episode", "steps"), [("single-turn", 60), ("multi-turn", 25), ("tools", 25)]
)
def test_a_new_environment_visibly_learns(episode: str, steps: int, tmp_path: Path) -> None:
    """Accuracy on tasks of the test split, sampled at the temperature of training, leaves its 95 %
    interval.
    """
    environ = {**os.environ, "QUINTAIN_CACHE": str(tmp_path / "cache")}

    def run(*words: str) -> None:
        command = [sys.executable, "-m", "quintain", *words]
        ended = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1500
        )
        assert ended.returncode == 0, ended.stderr

    run("new", "environment", "first-one", "--kind", episode, "--folder", "new")
    run(
        "train",
        "--env",
        "new/src/quintain_env_first_one/first_one.py:FirstOne",
        "--steps",
        str(steps),
        "--name",
        "first",
    )
    held_out = json.loads((tmp_path / "runs" / "first" / "summary.json").read_text())["held_out"]

    assert held_out["after"]["temperature"] == 0.7
    assert held_out["before"]["high"] + 0.15 < held_out["after"]["low"]
