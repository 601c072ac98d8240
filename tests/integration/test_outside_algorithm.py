"""A method from a package that Quintain knows nothing of: installed by pip, listed, compared,
trained by name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from quintain.learning import LossInputs

from ..core.models.tiny import save_tiny

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "quintain-sapo"

BABBLE = """
from quintain import Environment, Limits, Rollout, Task, reward

@reward(range=(0, 1))
def small_letter(rollout: Rollout) -> float:
    return float(any("a" <= c <= "z" for c in rollout.reply))

class Babble(Environment[Task, None]):
    reward, limits = small_letter, Limits(turns=1, tokens=4)

    def tasks(self, split: str):
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(100))
"""
"""A random model of bytes is right about a third of the time, so that groups differ."""

RECIPE = """
run = { name = "short", steps = 2 }
model = { name = "model", dtype = "float32", device = "cpu" }
environments = [{ use = "babble.py:Babble" }]
algorithm = { use = "sapo", args = { minibatches = 2, objective = { negative = 1.5 } } }
sampling = { max_tokens = 4 }
batch = { prompts = 4, group_size = 4 }
learner = { lr = 3e-3, precision = "float32" }
evaluation = { every = 0, test = { tasks = 4 } }
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the example is installed."""
    target = tmp_path_factory.mktemp("installed")
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(EXAMPLE)],
        check=True,
        capture_output=True,
    )
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "160", "OMP_NUM_THREADS": "1"}


def quintain(environ: dict[str, str], *words: str, at: Path | None = None) -> str:
    command = [sys.executable, "-m", "quintain", *words]
    done = subprocess.run(
        command, env=environ, cwd=at, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.more
def test_it_is_listed_with_its_source(environ: dict[str, str]) -> None:
    """The row among the others; its piece is told of where it is asked for."""
    listed = {
        c["name"]: c
        for c in json.loads(quintain(environ, "list", "algorithms", "--json"))["components"]
    }

    assert listed["sapo"]["distribution"] == "quintain-sapo"
    assert listed["sapo"]["error"] == ""
    assert listed["sapo"]["source"] == "Gao et al. 2025, arXiv 2511.20347"
    assert "sigmoid gate" in listed["sapo"]["summary"]
    assert "objective.sapo" not in listed
    (piece,) = json.loads(quintain(environ, "info", "objective.sapo", "--json"))["components"]
    assert piece["distribution"] == "quintain-sapo"
    assert piece["name"] == "objective.sapo"


@pytest.mark.ci
def test_it_trains_by_name(environ: dict[str, str], tmp_path: Path) -> None:
    """A recipe takes the row and configures its piece; two steps of two minibatches, so that the
    gate leaves 1.
    """
    save_tiny(tmp_path / "model", context=256)
    (tmp_path / "babble.py").write_text(BABBLE)
    (tmp_path / "recipe.toml").write_text(RECIPE)

    summary = json.loads(quintain(environ, "train", "recipe.toml", "--json", at=tmp_path))

    assert summary["steps"] == 2
    assert summary["samples"] == 32
    record = json.loads(
        (tmp_path / "runs" / "short" / "metrics.jsonl").read_text().splitlines()[-1]
    )
    assert record["ratio.max"] > 1


@pytest.mark.usefixtures("own_pieces")
def test_its_gate_is_the_papers() -> None:
    """Value and gradient against NumPy: f(r) = 4 / tau sigmoid(tau (r - 1)), f'(r) = 4 p (1 - p),
    tau by sign of A.
    """
    spec = importlib.util.spec_from_file_location(
        "sapo_of_the_example", EXAMPLE / "src" / "quintain_sapo" / "sapo.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    ratio, gain = (x.ravel() for x in np.meshgrid([0.2, 0.9, 1.0, 1.3, 4.0], [-1.5, 0.0, 0.5]))
    old = torch.full((len(ratio),), -1.0, dtype=torch.float64)
    logp = (old + torch.from_numpy(np.log(ratio))).requires_grad_()
    one = torch.arange(len(ratio))
    t = LossInputs(
        logp=logp,
        mu_logp=old,
        prox_logp=old,
        advantage=torch.from_numpy(gain),
        entropy=old,
        sample=one,
        group=one,
    )
    loss = module.sapo(t, negative=2.0)
    (slope,) = torch.autograd.grad(loss.sum(), logp)

    tau = np.where(gain > 0, 1.0, 2.0)
    p = 1 / (1 + np.exp(-tau * (ratio - 1)))
    np.testing.assert_allclose(loss.detach().numpy(), -4 / tau * p * gain, atol=1e-12)
    np.testing.assert_allclose(slope.numpy(), -4 * p * (1 - p) * ratio * gain, atol=1e-12)
    assert module.SAPO.name == "sapo"
    assert module.SAPO.aggregation.name == "sequence"
    assert module.SAPO.kl.active is False
