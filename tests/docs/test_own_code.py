"""What a reader types off the README trains, with a small model in place of the default one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli import main

from ..core.models import save_tiny
from .pages import page

SMALL = {
    "sampling.max_tokens": "8",
    "batch.groups": "2",
    "batch.members": "4",
    "model.dtype": "float32",
    "learner.precision": "float32",
    "evaluation.tasks": "4",
    "evaluation.test.tasks": "4",
}


def test_the_readmes_environment_trains(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--env reverse.py:Reverse` with the reward of the other file as shaping: two steps, and a summary."""
    for block in page("README.md").blocks:
        if block.file:
            (desk / block.file).write_text(block.text)
    save_tiny(desk / "model", context=128)
    shaping = """environments.0.shaping=0.2 * use("closeness.py:in_place")"""
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    words = ["--model", "model", "--env", "reverse.py:Reverse", "--set", shaping, "--steps", "2", "--json"]
    status = main(["train", *words, *sets])

    summary = json.loads(capsys.readouterr().out)
    assert (0, 2, 16) == (status, summary["steps"], summary["samples"])
    metrics = (desk / "runs" / "reverse-1" / "metrics.jsonl").read_text().splitlines()
    assert "reward.part.in_place.mean" in json.loads(metrics[-1])
