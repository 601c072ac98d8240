"""Runs whose ranks are killed at random moments, in every phase: the run goes on, and ends with the
same weights and metrics as a run in which nothing happened.

    KILLS=300 python -m pytest tests/plugins/learners/fsdp/test_kills.py -m slow -s

makes 300 kills, in runs of 30.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from quintain.interfaces.learner import PARTS

from ....processes import ended, within
from ....small_run import small_recipe
from .test_run import SUMS, children, ranks_of

STEPS = 40
OF_A_RUN = 30
"""Kills of a run."""
LOST = re.compile(r"lost rank \d.*?, while the ranks did '(\w+)'")
TABLES = """[checkpoint]
every = 1
keep = 2
[learner]
use = "fsdp"
lr = 1e-3
args = { ranks = 2, sharding = "SHARDING", checkpoint = "CHECKPOINT", copy_every = 3, restarts = 100 }
"""


def started(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a run, whose messages go to ``NAME.txt``."""
    with (folder / f"{name}.txt").open("wb") as messages:
        return subprocess.Popen(
            [sys.executable, "-m", "quintain", "train", "recipe.toml", "-q", "--name", name],
            cwd=folder,
            stdout=messages,
            stderr=messages,
            env=os.environ | {"QUINTAIN_PLUGINS": ""},
        )


def outcome(folder: Path, name: str) -> tuple[dict[str, Any], str]:
    """Return the last weights and moments of a run, and its metrics but times as text."""
    run = folder / "runs" / name
    checkpoint = run / f"checkpoints/step-{STEPS:06d}"
    weights = {}
    for file in (checkpoint / "model").glob("*.safetensors"):
        weights |= load_file(file)
    state = torch.load(checkpoint / "learner.pt", weights_only=False)["learner"]["optimizer"]
    if (checkpoint / PARTS).exists():
        dcp_to_torch_save(checkpoint / PARTS, folder / f"{name}.pt")
        state |= torch.load(folder / f"{name}.pt", weights_only=False)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [
        {key: value for key, value in record.items() if "second" not in key} for record in records
    ]
    return {"weights": weights, "optimizer": state}, json.dumps(kept, indent=1)


def kill_at_random(
    run: subprocess.Popen[bytes], metrics: Path, draw: random.Random, count: int
) -> int:
    """Kill a random rank of *run* at random moments, *count* times or until it ends; return how
    often.

    A moment is up to some seconds after up to two more steps, or while the ranks start.
    """
    killed = 0

    def lines() -> int:
        return metrics.read_text().count("\n") if metrics.exists() else 0

    while killed < count and run.poll() is None:
        wanted = lines() + draw.choice([0, 1, 1, 1, 2])
        while lines() < min(wanted, STEPS) and run.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.choice([0.05, 0.2, 1.0]) * draw.random())
        if ranks := ranks_of(run.pid):
            with suppress(ProcessLookupError):
                os.kill(draw.choice(ranks), signal.SIGKILL)
                killed += 1
                # A dead rank cannot die again.
                within(60, lambda: not {*ranks} & {*ranks_of(run.pid)} or run.poll() is not None)
    return killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharding", "checkpoint"),
    [("sharded", "whole"), ("replicated", "whole"), ("sharded", "sharded")],
)
def test_killed_ranks_change_no_bit_of_a_run(
    sharding: str, checkpoint: str, small_run: Callable[..., Path]
) -> None:
    """With checkpoints and copies; also kills while ranks start."""
    tables = TABLES.replace("SHARDING", sharding).replace("CHECKPOINT", checkpoint)
    folder = small_run(small_recipe(SUMS, steps=STEPS, algorithm="sft", tables=tables))
    assert started(folder, "whole").wait(timeout=600) == 0, (folder / "whole.txt").read_text()
    expected = outcome(folder, "whole")
    wanted = int(os.environ.get("KILLS", "9")) // 3
    kills, phases, seed = 0, Counter[str](), 0
    while kills < wanted:
        name, draw = f"killed-{seed}", random.Random(f"{sharding} {checkpoint} {seed}")
        run = started(folder, name)
        killed = kill_at_random(
            run, folder / f"runs/{name}/metrics.jsonl", draw, min(OF_A_RUN, wanted - kills)
        )
        ranks = [*children(run.pid), *ranks_of(run.pid)]
        status = run.wait(timeout=1800)
        messages = (folder / f"{name}.txt").read_text()
        assert status == 0, messages
        assert all(within(30, lambda pid=pid: ended(pid)) for pid in ranks)
        tensors, metrics = outcome(folder, name)
        torch.testing.assert_close(tensors, expected[0], rtol=0, atol=0)
        assert metrics == expected[1]
        kills, seed = kills + killed, seed + 1
        phases.update(LOST.findall(messages))
        print(
            f"{sharding}, {checkpoint}: {kills} kills in {seed} runs; found in {dict(phases)}",
            flush=True,
        )
    assert phases
