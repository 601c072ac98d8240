"""The tests of vLLM, in an environment that has it: made once per machine, outside the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from ..core.models.tiny import save_tiny
from ..plugins.vision import tiny

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment."""
    made = subprocess.run(
        ["timeout", "170", "bash", "tools/vllm_env.sh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if made.returncode == 124:
        pytest.skip("the environment of vLLM was not made within 170 s: bash tools/vllm_env.sh")
    if made.returncode == 3:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_vllm_lane(python: str) -> None:
    """They run for real there: a file that is skipped for want of vLLM is a failure."""
    files = sorted(
        str(p.relative_to(ROOT))
        for p in (ROOT / "tests" / "plugins" / "engines" / "vllm").glob("test_*.py")
        if p.name != "test_server_standstill.py"  # needs no vLLM, and plugins that are not there
    )
    assert files
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *files,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-6000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert re.search(r"\d+ passed", summary), summary
    assert "vLLM is not installed" not in done.stdout, done.stdout[-2000:]


@pytest.mark.parametrize("learner", ["default", "fsdp"])
def test_the_command_trains(learner: str, python: str, tmp_path: Path) -> None:
    """The command of the page, with a small model, also with two ranks: engine and learner agree on
    every token over three versions. Both compute in float32. Rewards differ within a group, so that
    each step has an update.
    """
    save_tiny(tmp_path / "model", hidden=128)
    environment = f"{ROOT}/tests/integration/babble.py:Varied"
    small = ["--model", "model", "--env", environment, "--steps", "3", "--set", "batch.prompts=4"]
    small += [
        "--set",
        "batch.group_size=4",
        "--set",
        "learner={lr=1e-3, precision='float32'}",
        "--set",
        "model.dtype=float32",
        "--set",
        "evaluation={tasks=4, test={tasks=4}}",
    ]
    if learner == "fsdp":
        small += ["--set", "learner.use=fsdp", "--set", "learner.args.ranks=2"]
    command = [str(Path(python).with_name("quintain")), "train", "--set", "engine.use=vllm", *small]
    variables = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    (path,) = tmp_path.glob("runs/*/metrics.jsonl")
    steps = [
        metrics for line in path.read_text().splitlines() if (metrics := json.loads(line))["step"]
    ]
    assert [metrics["step"] for metrics in steps] == [1, 2, 3]
    assert all(metrics["updates"] for metrics in steps)
    assert all(0 < metrics["mismatch.sample"] < 1e-3 for metrics in steps)


def test_a_model_that_sees_trains(python: str, tmp_path: Path) -> None:
    """Two steps of GRPO on pictures: engine and learner agree on every token of three versions, and
    the vision tower trains.
    """
    tiny.save(tmp_path / "model", "llava", hidden=128)
    recipe = """
[model]
name = "model"
dtype = "float32"

[[environments]]
use = "ROOT/tests/integration/counted.py:Varied"
args = { size = 32, train = 8, held_out = 4 }

[algorithm]
use = "grpo"
args = { kl = { coefficient = 0.0 } }

[run]
steps = 2

[engine]
use = "vllm"

[sampling]
max_tokens = 6

[batch]
prompts = 4
group_size = 4

[learner]
lr = 1e-3
precision = "float32"

[evaluation]
tasks = 4
test = { tasks = 4 }
""".replace("ROOT", str(ROOT))
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    command = [str(Path(python).with_name("quintain")), "train", "recipe.toml", "--name", "seen"]
    variables = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1"}
    variables["QUINTAIN_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    lines = (tmp_path / "runs" / "seen" / "metrics.jsonl").read_text().splitlines()
    steps = [metrics for line in lines if (metrics := json.loads(line))["step"]]
    assert [metrics["step"] for metrics in steps] == [1, 2]
    assert all(metrics["updates"] for metrics in steps)
    assert all(0 < metrics["mismatch.sample"] < 1e-3 for metrics in steps)


def test_turns_with_tools_train(python: str, tmp_path: Path) -> None:
    """The recipe `search`, briefly: the policy calls its tool between turns, and engine and learner
    agree on every token of three versions. docs/vllm.md has the whole run.
    """
    small = [
        "--steps",
        "3",
        "--set",
        "model.start.args.max_steps=120",
        "--set",
        "model.start.args.check_every=120",
    ]
    small += ["--set", "model.start.args.tasks=10", "--set", "environments.0.args.pilots=200"]
    small += [
        "--set",
        "services.retriever.args={pilots=200}",
        "--set",
        "batch={prompts=4, group_size=4}",
    ]
    small += ["--set", "evaluation={every=3, tasks=4, test={tasks=4}}"]
    command = [
        str(Path(python).with_name("quintain")),
        "train",
        "search",
        "--set",
        "engine.use=vllm",
        *small,
    ]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1"}
    environment["QUINTAIN_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=540
    )
    if "No module named 'tantivy'" in done.stderr:
        pytest.skip("the environment of vLLM has no tantivy, and could not install it")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    (path,) = tmp_path.glob("runs/*/metrics.jsonl")
    steps = [
        metrics for line in path.read_text().splitlines() if (metrics := json.loads(line))["step"]
    ]
    assert [metrics["step"] for metrics in steps] == [1, 2, 3]
    assert all(metrics["failed"] == 0 for metrics in steps)
    assert max(metrics["turns.mean"] for metrics in steps) > 1, "no tool was called"
    mismatches = [metrics["mismatch.max"] for metrics in steps if "mismatch.max" in metrics]
    assert mismatches
    assert max(mismatches) < 1e-3
