"""What a step measures of the routers of a mixture, and the bias that balances those of DeepSeek V3."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.engine.embedded import EmbeddedEngine
from quintain.learning.algorithms import REINFORCE
from quintain.learning.batch import Batch
from quintain.learning.learner import Learner
from quintain.models.tokenizer import HFTokenizer
from quintain.store.checkpoint import Checkpoint, CheckpointManager
from quintain.store.run_folder import RunFolder

from ..engine.test_embedded_engine import TOKENIZER, run
from ..engine.test_router_replay import routed
from ..models.architectures import architecture
from ..models.tiny import byte_tokenizer
from . import batches

BIAS = "e_score_correction_bias"


def shares(module: Any, batch: Batch) -> list[list[float]]:
    """The share of each expert by layer, from the module's own forward over one sequence at a time."""
    tokens = [
        text
        for sample in batch.samples
        for row in sample.sequences
        for text in routed(module, row.ids[:-1])
    ]
    layers = [Counter("".join(text[i : i + 2] for text in tokens)) for i in (0, 2)]
    return [[count[str(e)] / (2 * len(tokens)) for e in range(4)] for count in layers]


def test_load_is_that_of_each_token_without_padding() -> None:
    """Of two micro-batches of rows of different lengths."""
    module = architecture("qwen3-moe")
    batch = batches.batch(vocab=64)
    wanted = shares(module, batch)
    metrics = Learner(module, REINFORCE, token_budget=60, skip_idle=False).step(batch)
    assert metrics["experts.max"] == pytest.approx(max(map(max, wanted)))
    entropies = [-sum(p * math.log(p) for p in layer if p) / math.log(4) for layer in wanted]
    assert metrics["experts.entropy"] == pytest.approx(min(entropies))
    assert metrics["experts.replayed"] == 0
    assert "experts.agree" not in metrics


def test_load_is_of_one_step_and_not_of_those_before() -> None:
    learner = Learner(architecture("qwen3-moe"), REINFORCE, lr=0.0)
    batch = batches.batch(vocab=64)
    first, again = learner.step(batch), learner.step(batch)
    assert first["experts.max"] == again["experts.max"]
    learner.step(batches.batch(vocab=64, seed=5))
    assert learner.step(batch)["experts.max"] == first["experts.max"]


def test_a_dense_model_has_no_such_metrics() -> None:
    metrics = Learner(architecture("qwen3"), REINFORCE).step(batches.batch(vocab=64))
    assert not [name for name in metrics if name.startswith("experts.")]


def biases(module: Any) -> list[torch.Tensor]:
    return [buffer for name, buffer in module.named_buffers() if name.endswith(BIAS)]


def moved(module: Any) -> list[torch.Tensor]:
    """The biases, moved by hand as pretraining does; a copy."""
    for buffer in biases(module):
        buffer.add_(torch.tensor([0.25, -0.5, 0.125, 1.0]))
    return [buffer.clone() for buffer in biases(module)]


@pytest.mark.keeps("deepseek-v3")
@pytest.mark.parametrize("name", ["deepseek-v3", "glm4-moe"])
def test_training_leaves_the_bias_and_checkpoint_and_engine_have_it(
    name: str, tmp_path: Path
) -> None:
    learner = Learner(architecture(name), REINFORCE, lr=1e-2, weight_decay=0.1)
    engine = EmbeddedEngine.sharing(learner.module, TOKENIZER, dtype="bfloat16")
    wanted = moved(learner.module)
    learner.step(batches.batch(vocab=64))
    assert all(map(torch.equal, biases(learner.module), wanted))

    run(engine.update(learner.weights()))
    assert engine.snapshot is not None
    assert all(map(torch.equal, biases(engine.snapshot.module), wanted))  # not rounded

    with RunFolder.create(tmp_path / "run", '[[environments]]\nuse = "guess"\n') as folder:
        manager = CheckpointManager(folder, tokenizer=HFTokenizer(byte_tokenizer()))
        path = manager.save(1, learner=learner, state={})
        resumed = Learner(architecture(name, seed=3), REINFORCE)
        Checkpoint.open(path).restore(resumed)
        assert all(map(torch.equal, biases(resumed.module), wanted))
        exported = type(learner.module).from_pretrained(path / "model")
        assert all(map(torch.equal, biases(exported), wanted))
