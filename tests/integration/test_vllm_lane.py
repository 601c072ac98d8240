"""The tests of vLLM, in an environment that has it: made once per machine, outside the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment."""
    made = subprocess.run(["bash", "tools/vllm_env.sh"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    if made.returncode == 3:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_vllm_lane(python: str) -> None:
    """They run for real there: a file that is skipped for want of vLLM is a failure."""
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests" / "plugins").glob("test_vllm*.py"))
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", "-m", "not slow", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-6000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert re.search(r"\d+ passed", summary), summary
    assert "vLLM is not installed" not in done.stdout, done.stdout[-2000:]


def test_the_quickstart_trains(python: str, tmp_path: Path) -> None:
    """Two steps of the command on the page, from the default model of the recipe `quickstart`, grown for a few updates."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1"}
    small = [
        "--set",
        "model.start.args.updates=4",
        "--set",
        "model.start.args.target=[0.0, 1.0]",
        "--set",
        "batch.prompts=4",
    ]
    command = [str(Path(python).with_name("quintain")), "train", "--set", "engine.use=vllm", "--steps", "2", *small]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    (metrics,) = tmp_path.glob("runs/*/metrics.jsonl")
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert last["step"] == 2
    assert last["mismatch.max"] < 1e-3
