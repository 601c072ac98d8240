"""Scorers of given text: against a plain forward pass, their batches, cache, noise floor and
checkpoints.
"""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain import LimitReached, Message
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.models.lora import with_adapters
from quintain_rewards.likelihood import (
    EngineLikelihood,
    FrozenModel,
    FrozenPolicy,
    NGram,
    Pair,
    improvement,
)

from ....core.models.tiny import byte_tokenizer, save_tiny, tiny_model

STORY = (Message("user", "The boat left at dawn.\n\n# Plan\nThe fog lifts."),)
BARE = (Message("user", "The boat left at dawn.\n\n# Plan\n"),)
CHAPTER = "By noon the fog was gone, and they saw the island."


def tokenizer() -> HFTokenizer:
    return HFTokenizer(byte_tokenizer())


def learner_and_policy(module: Any) -> tuple[Any, Any]:
    """What a run gives its services: a learner with its live module, an engine that decodes it."""
    return SimpleNamespace(module=module), EmbeddedEngine.sharing(module, tokenizer())


def plain_mean(module: Any, prompt: tuple[Message, ...], reply: str) -> float:
    """The mean log-prob of *reply* by one forward pass of transformers and nothing of ours but the
    rendered prompt.
    """
    hf = byte_tokenizer()
    text = hf.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in prompt],
        add_generation_prompt=True,
        tokenize=False,
    )
    head = hf(text, add_special_tokens=False)["input_ids"]
    tail = hf(reply, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = module(torch.tensor([head + tail])).logits[0].double()
    logps = logits.log_softmax(-1)
    return sum(float(logps[len(head) - 1 + i, token]) for i, token in enumerate(tail)) / len(tail)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_vr_cli_is_that_of_a_plain_forward_pass(kind: str) -> None:
    """I = (1 - PPL(y | x, a) / PPL(y | x)) * 100, from the logits of transformers in float64."""
    module = tiny_model(kind)
    learner, policy = learner_and_policy(copy.deepcopy(module))

    async def ours() -> tuple[float, float, float]:
        async with FrozenPolicy(policy=policy, learner=learner) as scorer:
            planned, bare = await scorer.score([Pair(STORY, CHAPTER), Pair(BARE, CHAPTER)])
            return planned.mean, bare.mean, improvement(planned, bare)

    planned, bare, percent = asyncio.run(ours())
    expected_planned, expected_bare = (
        plain_mean(module, prompt, CHAPTER) for prompt in (STORY, BARE)
    )
    assert (planned, bare) == pytest.approx((expected_planned, expected_bare), abs=2e-6)
    perplexities = [
        torch.tensor(-mean, dtype=torch.float64).exp().item()
        for mean in (expected_planned, expected_bare)
    ]
    assert percent == pytest.approx((1 - perplexities[0] / perplexities[1]) * 100, abs=1e-3)
    assert abs(percent) > 0.01  # the two prompts differ to this model


def test_a_frozen_policy_does_not_follow_the_policy() -> None:
    """Updates of the learner leave the scorer's numbers as they were, bit for bit."""
    module = tiny_model()
    learner, policy = learner_and_policy(module)

    async def run() -> tuple[list[float], list[float]]:
        async with FrozenPolicy(policy=policy, learner=learner) as scorer:
            before = await scorer.logprobs(STORY, CHAPTER)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.5)
            return before, await scorer.logprobs(STORY, CHAPTER)

    before, after = asyncio.run(run())
    assert before == after
    assert plain_mean(module, STORY, CHAPTER) != pytest.approx(sum(after) / len(after), abs=1e-3)


def test_a_resumed_run_has_the_scorer_of_its_start() -> None:
    """A checkpoint restores the first weights into a scorer that was started from trained ones."""
    first, trained = tiny_model(seed=0), tiny_model(seed=1)

    async def run() -> tuple[list[float], list[float], list[float]]:
        async with FrozenPolicy(**services(first)) as scorer:
            expected, state = await scorer.logprobs(STORY, CHAPTER), copy.deepcopy(scorer.state())
        async with FrozenPolicy(**services(trained)) as scorer:
            other = (await scorer.baseline(Pair(STORY, CHAPTER))).logprobs
            scorer.restore(state)
            restored = (await scorer.baseline(Pair(STORY, CHAPTER))).logprobs
            return expected, list(other), list(restored)

    expected, other, restored = asyncio.run(run())
    assert expected == restored
    assert expected != other


def services(module: Any) -> dict[str, Any]:
    learner, policy = learner_and_policy(module)
    return {"learner": learner, "policy": policy}


def test_a_policy_with_adapters_is_its_base_model() -> None:
    """Trained adapters are left out, and the checkpoint has no weights."""
    base = tiny_model()
    adapted: Any = with_adapters(copy.deepcopy(base), {"r": 2, "target_modules": ["q_proj"]})
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(1.0)

    async def run() -> tuple[float, Any]:
        async with FrozenPolicy(**services(adapted)) as scorer:
            return (await scorer.baseline(Pair(STORY, CHAPTER))).mean, scorer.state()

    mean, state = asyncio.run(run())
    assert mean == pytest.approx(plain_mean(base, STORY, CHAPTER), abs=2e-6)
    assert state == {}


def test_before_there_is_a_policy_the_n_gram_model_scores() -> None:
    async def run() -> tuple[list[float], list[float]]:
        async with FrozenPolicy(policy=None, learner=None) as scorer:
            assert scorer.state() == {}
            return await scorer.logprobs(STORY, CHAPTER), await NGram().logprobs(STORY, CHAPTER)

    frozen, ngram = asyncio.run(run())
    assert frozen == ngram


def test_the_numbers_of_a_batch_do_not_depend_on_what_else_is_scored() -> None:
    """Two calls at the same time give the bits that each gives alone; one pass computes a call."""
    engine = EmbeddedEngine.sharing(tiny_model(), tokenizer(), reproducible=False)
    scorer = EngineLikelihood(engine)
    some = [Pair(STORY, CHAPTER * n) for n in (1, 2, 3)]
    others = [Pair(BARE, CHAPTER * n) for n in (2, 1, 2, 1)]

    async def run() -> tuple[Any, Any]:
        async with engine:
            alone = [await scorer.score(some), await scorer.score(others)]
            return alone, list(await asyncio.gather(scorer.score(some), scorer.score(others)))

    alone, together = asyncio.run(run())
    assert alone == together
    assert scorer.computed == 14


def test_a_baseline_is_computed_once() -> None:
    """Also where several episodes ask for it at once; another number of tokens is another
    baseline.
    """
    scorer = NGram()

    async def run() -> None:
        pair = Pair(BARE, CHAPTER)
        scores = await asyncio.gather(*(scorer.baseline(pair) for _ in range(20)))
        assert len(set(scores)) == 1
        assert scorer.computed == 1
        short = await scorer.baseline(pair, max_tokens=3)
        assert short.logprobs == scores[0].logprobs[:3]
        assert scorer.computed == 2

    asyncio.run(run())


def test_a_failed_baseline_is_tried_again() -> None:
    class Flaky(NGram):
        failures = 1

        async def score(self, pairs: Any, *, max_tokens: int = 0) -> Any:
            await asyncio.sleep(0)
            if self.failures:
                self.failures -= 1
                raise OSError("gone")
            return await super().score(pairs, max_tokens=max_tokens)

    async def run() -> None:
        scorer, pair = Flaky(), Pair(BARE, CHAPTER)
        with pytest.raises(OSError, match="gone"):
            await scorer.baseline(pair)
        assert await scorer.baseline(pair) == (await scorer.score([pair]))[0]

    asyncio.run(run())


def test_a_cancelled_caller_leaves_the_baseline_to_the_others() -> None:
    engine = EmbeddedEngine.sharing(tiny_model(), tokenizer(), reproducible=False)
    scorer = EngineLikelihood(engine)

    async def run() -> None:
        async with engine:
            first = asyncio.ensure_future(scorer.baseline(Pair(BARE, CHAPTER)))
            second = asyncio.ensure_future(scorer.baseline(Pair(BARE, CHAPTER)))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).mean < 0

    asyncio.run(run())
    assert scorer.computed == 1


def test_the_noise_floor_is_measured(tmp_path: Any) -> None:
    """Rounding in float32 is far below the first published edge; the n-gram model is exact."""
    folder = save_tiny(tmp_path / "model")

    async def run() -> tuple[Any, Any]:
        async with FrozenModel(model=str(folder), device="cpu") as scorer:
            return await scorer.noise_floor(), await NGram().noise_floor()

    tiny, exact = asyncio.run(run())
    assert 0 <= tiny.nats < 1e-5
    assert tiny.improvement == pytest.approx(100 * tiny.nats, rel=1e-3)
    assert exact.nats == exact.improvement == 0


def test_the_noise_floor_shows_an_unsteady_scorer() -> None:
    """Numbers that change with the company are found."""

    class Unsteady(NGram):
        async def score(self, pairs: Any, *, max_tokens: int = 0) -> Any:
            scores = await super().score(pairs)
            return [type(s)(tuple(x - 0.01 * len(pairs) for x in s.logprobs)) for s in scores]

    assert asyncio.run(Unsteady().noise_floor()).nats == pytest.approx(0.02)


def test_what_does_not_fit_is_named() -> None:
    engine = EmbeddedEngine.sharing(tiny_model(context=64), tokenizer())
    with pytest.raises(LimitReached, match=r"scorer's context is 64: shorten the prompt"):
        asyncio.run(EngineLikelihood(engine).score([Pair("x" * 60, "y" * 5)]))
    scores = asyncio.run(EngineLikelihood(engine).score([Pair("x" * 60, "y" * 5)], max_tokens=4))
    assert len(scores[0].logprobs) == 4
    with pytest.raises(ValueError, match="an empty prompt"):
        asyncio.run(EngineLikelihood(engine).score([Pair("", "y")]))
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(FrozenModel(model="none").score([Pair("x", "y")]))
