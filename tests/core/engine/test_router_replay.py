"""The engine records the experts of each token, and the learner that takes them again gives the log-probs
that were sampled.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.learning.algorithms import REINFORCE
from quintain.learning.batch import Batch, Sample
from quintain.learning.learner import Learner
from quintain.models.routers import Routers
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from ..learning.batches import sequence
from ..models.architectures import architecture
from .test_embedded_engine import TOKENIZER, run

MIXTURES = (
    "qwen3-moe qwen2-moe olmoe mixtral granite-moe glm4-moe deepseek-v3 gpt-oss llama4 qwen3-next "
    "granite-hybrid"
).split()
PROMPTS = [[7, 8, 9, 11], [7, 8, 9], [3, 5, 3, 5, 3, 5, 3, 5], [20]]


def mixture(name: str, **changed: Any) -> Any:
    """A mixture whose routers prefer no expert by much."""
    module = architecture(name, **changed)
    for buffer_name, buffer in module.named_buffers():
        if buffer_name.endswith("correction_bias"):
            buffer.mul_(0.05)
    return module


def turns(engine: EmbeddedEngine, prompts: Sequence[Sequence[int]]) -> list[Sampled]:
    """A turn of each prompt, of different lengths and over fewer slots than prompts."""

    async def every() -> list[Sampled]:
        samplings = [Sampling(max_tokens=4 + 3 * i, seed=i) for i in range(len(prompts))]
        return await asyncio.gather(*map(engine.sample, prompts, samplings))

    return run(every())


@torch.no_grad()
def routed(module: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The experts of *ids* in the module's own forward."""
    routers = Routers.of(module)
    with routers.watched() as choices:
        module(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return routers.texts(routers.chosen(choices))


def sample_of(prompt: Sequence[int], turn: Sampled, outcome: float) -> Sample:
    row = replace(sequence(prompt, turn.ids, logps=turn.logps), experts=turn.experts)
    return Sample(sequences=(row,), outcome=outcome, group=0)


def batch_of(prompts: Sequence[Sequence[int]], sampled: Sequence[Sampled]) -> Batch:
    return Batch(
        samples=tuple(
            sample_of(prompt, turn, float(i % 2))
            for i, (prompt, turn) in enumerate(zip(prompts, sampled, strict=True))
        ),
        max_tokens=16,
    )


def with_noisy_routers(module: Any, noise: float, seed: int = 1) -> Any:
    """A copy whose routers have other weights, as those of an engine that rounds or is late."""
    noisy = copy.deepcopy(module)
    torch.manual_seed(seed)
    with torch.no_grad():
        for router in Routers.of(noisy).found:
            router.weight.add_(noise * torch.randn_like(router.weight))  # type: ignore[operator]
    return noisy


@pytest.mark.keeps("qwen3-moe", "deepseek-v3")
@pytest.mark.parametrize("name", MIXTURES)
def test_the_engine_records_the_experts_of_the_prompt_and_of_each_token_but_the_last(
    name: str,
) -> None:
    module = mixture(name)
    engine = EmbeddedEngine.sharing(module, TOKENIZER, slots=3)
    for prompt, turn in zip(PROMPTS, turns(engine, PROMPTS), strict=True):
        computed = [*prompt, *turn.ids[:-1]]
        assert turn.experts == routed(module, computed)


def test_a_second_turn_has_the_experts_of_the_first() -> None:
    """The prefix is copied from the row that holds it."""
    module = mixture("qwen3-moe")
    engine = EmbeddedEngine.sharing(module, TOKENIZER, slots=3, reproducible=False)
    prompts = [[*range(1, 30)]]
    (first,) = turns(engine, prompts)
    longer = [[*prompts[0], *first.ids, 9, 9], [*prompts[0], *first.ids, 8]]
    for prompt, turn in zip(longer, turns(engine, longer), strict=True):
        assert turn.experts == routed(module, [*prompt, *turn.ids[:-1]])
        assert turn.experts[: len(first.experts)] == first.experts


@pytest.mark.keeps("qwen3-moe", "deepseek-v3")
@pytest.mark.parametrize("name", MIXTURES)
def test_where_both_route_alike_replay_changes_no_bit(name: str) -> None:
    learners = [
        Learner(mixture(name), REINFORCE, lr=1e-2, activation_checkpointing=checkpoints)
        for checkpoints in (False, False, True)
    ]
    sampled = turns(EmbeddedEngine.sharing(mixture(name), TOKENIZER, slots=4), PROMPTS)
    batch = batch_of(PROMPTS, sampled)
    plain = batch_of(PROMPTS, [replace(turn, experts=()) for turn in sampled])
    metrics = [
        learner.step(given) for learner, given in zip(learners, (batch, plain, batch), strict=True)
    ]
    assert metrics[0]["experts.replayed"] == 1
    assert metrics[0]["experts.agree"] == 1
    assert metrics[1]["experts.replayed"] == 0
    for learner in learners[1:]:
        for own, other in zip(learners[0].parameters, learner.parameters, strict=True):
            assert torch.equal(own, other)


@pytest.mark.keeps("qwen3-moe", "deepseek-v3", "gpt-oss")
@pytest.mark.parametrize("name", MIXTURES)
def test_the_routers_of_a_noisy_engine_disagree_and_its_experts_are_taken(name: str) -> None:
    module = mixture(name)
    noisy = with_noisy_routers(module, 0.5)
    sampled = turns(EmbeddedEngine.sharing(noisy, TOKENIZER, slots=4), PROMPTS)
    learner = Learner(module, REINFORCE, lr=0.0, activation_checkpointing=True)
    metrics = learner.step(batch_of(PROMPTS, sampled))
    assert metrics["experts.replayed"] == 1
    assert metrics["experts.agree"] < 0.95


def test_replay_bounds_the_mismatch_of_a_bfloat16_engine() -> None:
    """Half precision rounds the scores of routers: single tokens go elsewhere, unless replayed."""
    module = mixture("qwen3-moe", num_experts=32, num_local_experts=32)
    engine = EmbeddedEngine.sharing(module, TOKENIZER, slots=8, dtype="bfloat16")
    prompts = [[(i * j) % 60 for j in range(1, 12)] for i in range(1, 17)]
    sampled = turns(engine, prompts)
    learner = Learner(module, REINFORCE, lr=0.0)
    replayed = learner.step(batch_of(prompts, sampled))
    plain = learner.step(batch_of(prompts, [replace(turn, experts=()) for turn in sampled]))
    assert 0.5 < replayed["experts.agree"] < 1
    assert replayed["mismatch.max"] < plain["mismatch.max"] / 2


def test_an_engine_records_nothing_of_a_dense_model_or_where_it_shall_not() -> None:
    dense = EmbeddedEngine.sharing(architecture("qwen3"), TOKENIZER)
    (turn,) = turns(dense, [[1, 2]])
    assert turn.experts == ()
    silent = EmbeddedEngine.sharing(mixture("qwen3-moe"), TOKENIZER, router_replay=False)
    (turn,) = turns(silent, [[1, 2]])
    assert turn.experts == ()


def test_a_dense_model_is_refused_where_replay_is_asked_for() -> None:
    with pytest.raises(UsageError, match="Qwen3ForCausalLM has no routers of experts"):
        EmbeddedEngine.sharing(architecture("qwen3"), TOKENIZER, router_replay=True)


def test_experts_of_another_model_are_refused() -> None:
    sampled = turns(EmbeddedEngine.sharing(mixture("qwen3-moe"), TOKENIZER), PROMPTS)
    other = Learner(mixture("qwen3-moe", num_experts_per_tok=1), REINFORCE)
    with pytest.raises(UsageError, match="2 layers with 1 of 4 experts"):
        other.step(batch_of(PROMPTS, sampled))


def test_layers_are_computed_again_as_often_as_a_backward_pass_needs_them() -> None:
    """As second derivatives of checkpointed layers do."""
    module = mixture("qwen3-moe")
    sampled = turns(EmbeddedEngine.sharing(with_noisy_routers(module, 0.5), TOKENIZER), PROMPTS)
    gradients = []
    for checkpoints in (True, False):
        learner = Learner(module, REINFORCE, activation_checkpointing=checkpoints)
        rows = batch_of(PROMPTS, sampled).rows(range(4))
        loss = learner.scorer.statistics([rows]).logp.sum()
        for retain in (True, False):
            gradient = torch.autograd.grad(loss, learner.parameters, retain_graph=retain)
            gradients.append(torch.cat([part.flatten() for part in gradient]))
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
