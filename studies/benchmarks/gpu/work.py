"""What the parts compute on: models with random weights, prompts of random ids, batches of samples,
and how many operations and bytes they take at least.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import torch

from quintain.engine.embedded import EmbeddedEngine
from quintain.interfaces.algorithm import Algorithm
from quintain.learning.batch import Batch, Sample
from quintain.models.layers import fuse_storage
from quintain.registry.lookup import current
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled, TrainingSequence

from ..shapes import config_of


class NoText:
    """What an engine asks of a tokenizer where prompts and replies are ids; none ends a reply."""

    stop_ids: tuple[int, ...] = ()
    vocab_size = 1 << 30  # every id may be drawn


def module_of(
    size: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    fused: bool = True,
    **settings: Any,
) -> Any:
    """Return a model of shape *size* with random weights, made on *device*.

    Args:
        fused: join its projections, as `load_model` does where there are no adapters.
        settings: further fields of its configuration.
    """
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            module = Qwen3ForCausalLM(config_of(size, **settings))
    finally:
        torch.set_default_dtype(before)
    if fused:
        fuse_storage(module)
    return module.eval()


def algorithm(name: str = "dr_grpo") -> Algorithm:
    """Return the algorithm *name*."""
    found: Algorithm = current().load("algorithm", name)
    return found


def vocabulary_of(module: Any) -> int:
    """Return the number of ids."""
    size: int = module.config.get_text_config().vocab_size
    return size


def prompts_of(module: Any, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Return prompts of random ids with *lengths*."""
    rng, size = random.Random(f"prompts/{seed}"), vocabulary_of(module)
    return [[rng.randrange(size) for _ in range(length)] for length in lengths]


def sample(
    engine: EmbeddedEngine, prompts: Sequence[Sequence[int]], new: int | Sequence[int]
) -> list[Sampled]:
    """Let *engine* continue *prompts*, awaited together, at temperature 1, by *new* tokens each."""
    counts = [new] * len(prompts) if isinstance(new, int) else new

    async def together() -> list[Sampled]:
        calls = (
            engine.sample(ids, Sampling(max_tokens=count, seed=i))
            for i, (ids, count) in enumerate(zip(prompts, counts, strict=True))
        )
        return list(await asyncio.gather(*calls))

    return asyncio.run(together())


def sequence(prompt: Sequence[int], reply: Sampled) -> TrainingSequence:
    """Return what trains of *reply* to *prompt*."""
    before = len(prompt)
    return TrainingSequence(
        ids=(*prompt, *reply.ids),
        mask=(*[False] * before, *[True] * len(reply.ids)),
        logps=(*[0.0] * before, *reply.logps),
        versions=(*[-1] * before, *reply.versions),
    )


def batch_of(sequences: Sequence[TrainingSequence], group_size: int, seed: int = 0) -> Batch:
    """Return a batch of *sequences*, of which *group_size* after one another are a group, with
    random rewards.
    """
    rng = random.Random(f"rewards/{seed}")
    samples = (
        Sample(sequences=(s,), outcome=rng.random(), group=i // group_size)
        for i, s in enumerate(sequences)
    )
    return Batch(samples=tuple(samples), max_tokens=max(sum(s.mask) for s in sequences))


def random_batch(
    module: Any, *, groups: int, group_size: int, prompt: int, lengths: Sequence[int], seed: int = 0
) -> Batch:
    """Return a batch of random ids: *groups* prompts of *prompt* tokens, each with *group_size*
    replies, whose lengths are those of *lengths* in turns.
    """
    rng, size = random.Random(f"batch/{seed}"), vocabulary_of(module)
    found = []
    for start in prompts_of(module, [prompt] * groups, seed):
        for _ in range(group_size):
            count = lengths[len(found) % len(lengths)]
            ids = tuple(rng.randrange(size) for _ in range(count))
            reply = Sampled(ids=ids, logps=(-1.0,) * count, versions=(0,) * count, finish="length")
            found.append(sequence(start, reply))
    return batch_of(found, group_size, seed)


def matrix_parameters(module: Any) -> tuple[int, int]:
    """Return the numbers in the matrices of the layers, and in the output layer."""
    head = module.get_output_embeddings().weight.numel()
    layers = sum(
        part.weight.numel()
        for part in module.modules()
        if isinstance(part, torch.nn.Linear) and part is not module.get_output_embeddings()
    )
    return layers, head


def training_flops(module: Any, batch: Batch) -> float:
    """Return the operations that an update on *batch* takes at least: each token of a prompt that
    samples of a group share once, the output layer at the tokens that train alone, attention over
    the tokens before each, nothing computed twice; the backward pass is twice the forward pass.
    """
    config = module.config.get_text_config()
    layers, head = matrix_parameters(module)
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    tokens = contexts = trained = 0
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for one in batch.samples:
        for s in one.sequences:
            prompt, inputs = s.mask.index(True), len(s.ids) - 1
            shared = (one.group, s.ids[:prompt])
            first = prompt if shared in seen else 0
            seen.add(shared)
            tokens += inputs - first
            contexts += (inputs * (inputs + 1) - first * (first + 1)) // 2
            trained += sum(s.mask)
    forward = 2 * layers * tokens + 2 * head * trained + 4 * width * contexts
    return 3.0 * forward


def step_bytes(module: Any, context: float, rows: int) -> float:
    """Return the bytes that one step of decoding reads at least: every matrix once, and the keys
    and values of *rows* rows of *context* tokens.
    """
    config, size = module.config.get_text_config(), next(module.parameters()).element_size()
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return float(size * (sum(matrix_parameters(module)) + rows * context * numbers))
