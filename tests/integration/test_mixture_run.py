"""A run of a mixture replays the experts of its engine, stores them, and resumes bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from quintain.cli import main

from ..core.models.architectures import architecture
from ..core.models.tiny import byte_tokenizer
from .recipes import metrics_of

pytestmark = pytest.mark.usefixtures("no_curves")

BABBLE = Path(__file__).parent / "babble.py"
RECIPE = """
run = {{ steps = {steps}, name = "{name}", folder = "runs" }}
model = {{ name = "model", device = "cpu", dtype = "bfloat16" }}
environments = [{{ use = "{babble}:Varied" }}]
algorithm = {{ use = "grpo" }}
sampling.max_tokens = 6
batch = {{ prompts = 2, group_size = 3 }}
learner.lr = 1e-3
evaluation = {{ every = 0, test = {{ tasks = 0 }} }}
checkpoint.every = 1
{more}
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains a mixture by a recipe of this name and number of steps."""
    monkeypatch.chdir(tmp_path)
    size = {"vocab_size": 260, "eos_token_id": 257, "pad_token_id": 259}
    size |= {"num_experts": 32, "num_local_experts": 32, "max_position_embeddings": 256}
    architecture("qwen3-moe", spread=0.05, **size).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")

    def trained(name: str, steps: int, more: str = "") -> int:
        recipe = RECIPE.format(name=name, steps=steps, babble=BABBLE, more=more)
        (tmp_path / f"{name}.toml").write_text(recipe)
        return main(["train", f"{name}.toml", "--quiet"])

    return trained


def measured(folder: Path) -> list[dict[str, float]]:
    names = ("loss", "grad_norm", "experts.max", "experts.entropy", "experts.replayed")
    return [{name: step[name] for name in names} for step in metrics_of(folder)[1:]]


def test_a_run_replays_and_stores_the_experts_and_resumes(train: Any, tmp_path: Path) -> None:
    assert train("whole", 3) == 0
    assert train("stopped", 1) == 0
    recipe = tmp_path / "runs" / "stopped" / "recipe.toml"
    recipe.write_text(re.sub(r"steps = 1\b", "steps = 3", recipe.read_text()))
    assert main(["train", "--resume", "runs/stopped", "--force", "--quiet"]) == 0
    whole = measured(tmp_path / "runs" / "whole")
    assert whole == measured(tmp_path / "runs" / "stopped")
    assert [step["experts.replayed"] for step in whole] == [1.0, 1.0, 1.0]
    (stored, *_) = sorted((tmp_path / "runs" / "whole").rglob("*.parquet"))
    record = json.loads(pyarrow.parquet.read_table(stored)["rollout"][0].as_py())
    branch = record["transcripts"][""]["branches"][0]
    assert len(branch["experts"]) == len(branch["ids"]) - 1
    assert {len(text) for text in branch["experts"]} == {4}


def test_an_engine_without_it_is_refused_by_name(train: Any, capsys: Any) -> None:
    assert train("refused", 1, 'engine = { use = "vllm", args = { router_replay = true } }') == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "engine 'vllm' has no argument 'router_replay'" in said
