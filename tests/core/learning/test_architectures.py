"""Every architecture of the table trains: padded rows in a micro-batch give the gradient of the
module's own logits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.engine.embedded import EmbeddedEngine
from quintain.learning.algorithms import REINFORCE
from quintain.learning.batch import Batch, Sample
from quintain.learning.learner import Learner
from quintain.models.forward import Forward
from quintain.models.load import trainable
from quintain.models.prefix_layout import TokenSequence
from quintain.types.sampling import Sampling

from ..engine.test_embedded_engine import TOKENIZER, run
from ..models.architectures import ARCHITECTURES, architecture, kinds_first
from .batches import sequence

NO_DECODER = ("bert", "electra")
ROWS = [[(7 * i + 3 * j) % 60 for j in range(n)] for i, n in enumerate((14, 3, 9, 20))]


@pytest.mark.keeps("llama", "gpt2", "qwen3")
@pytest.mark.parametrize(
    "name", kinds_first(name for name in ARCHITECTURES if name not in NO_DECODER)
)
def test_gradients_are_those_of_the_modules_own_logits(name: str) -> None:
    """With activation checkpointing, longer than the windows of the table."""
    plain = architecture(name)
    wanted = _gradients(plain, torch.cat([_log_probs(plain, ids) for ids in ROWS]))
    module = trainable(architecture(name), None)
    forward = Forward(module, checkpointing=True)
    found = _gradients(
        module, forward.statistics([[TokenSequence(ids, range(1, len(ids))) for ids in ROWS]]).logp
    )
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for parameter, gradient in found.items():
        torch.testing.assert_close(
            gradient, wanted[parameter], rtol=0, atol=2e-5 * largest, msg=parameter
        )


@pytest.mark.keeps("gpt2")
@pytest.mark.parametrize("name", ["gpt2", "mistral-window", "qwen3-moe"])
def test_the_engine_decodes_the_module_of_a_learner_that_checkpoints(name: str) -> None:
    """As in a run in float32 on one module: both agree before and after an update by recomputed
    layers.
    """
    learner = Learner(architecture(name), REINFORCE, lr=1e-2, activation_checkpointing=True)
    engine = EmbeddedEngine.sharing(learner.module, TOKENIZER, slots=4)
    prompts = [[7, 8, 9], [7, 8, 9, 10]]

    async def sampled(prompt: list[int], seed: int) -> Sample:
        turn = await engine.sample(prompt, Sampling(max_tokens=9, seed=seed))
        return Sample(
            sequences=(sequence(prompt, turn.ids, logps=turn.logps),),
            outcome=float(seed % 2),
            group=0,
        )

    async def sample_all() -> list[Sample]:
        return await asyncio.gather(
            *(sampled(prompt, seed) for prompt in prompts for seed in range(2))
        )

    before = {name: p.detach().clone() for name, p in learner.module.named_parameters()}
    for _ in range(2):
        metrics = learner.step(
            Batch(samples=tuple(run(sample_all())), max_tokens=9, temperature=1.0)
        )
        assert metrics["mismatch.max"] < 1e-5
    moved = [
        name for name, p in learner.module.named_parameters() if not torch.equal(p, before[name])
    ]
    assert len(moved) > len(before) / 2


def _gradients(module: Any, log_probs: Tensor) -> dict[str, Tensor]:
    named = dict(module.named_parameters())
    values = torch.autograd.grad(
        log_probs.sum(), list(named.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(named, values, strict=True))


def _log_probs(module: Any, ids: list[int]) -> Tensor:
    logits = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
