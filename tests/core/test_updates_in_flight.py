"""Weight updates while the embedded engine samples: which version each token has, and under which weights."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from quintain.engines.embedded.engine import EmbeddedEngine
from quintain.learning.weights import ModuleWeights
from quintain.models.tokenizer import HFTokenizer
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from .models import byte_tokenizer, tiny_model

PROMPT = [1, 2, 3, 4]


def sampled_during_an_update(in_flight: bool, recompute: bool) -> tuple[Sampled, Sampled, list[Any]]:
    """A reply with an update after its first tokens, one that was requested with the update, the modules by version."""
    modules = [tiny_model() for _ in range(2)]
    with torch.no_grad():
        for parameter in modules[1].parameters():
            parameter.mul_(1.3)
    engine = EmbeddedEngine.sharing(modules[0], HFTokenizer(byte_tokenizer()), copy=True)
    engine.in_flight_updates, engine.recompute_kv = in_flight, recompute

    async def go() -> tuple[Sampled, Sampled]:
        await engine.update(ModuleWeights(modules[0], 0))
        first = asyncio.create_task(engine.sample(PROMPT, Sampling(max_tokens=200, seed=3)))
        while not (engine._running() or first.done()):  # noqa: ASYNC110 -- the engine has no event for it
            await asyncio.sleep(0)
        update = asyncio.create_task(engine.update(ModuleWeights(modules[1], 1)))
        await asyncio.sleep(0)
        second = asyncio.create_task(engine.sample([7, 8, 9], Sampling(max_tokens=4, seed=5)))
        assert 1 == await update
        return await first, await second

    return *asyncio.run(go()), modules


@pytest.mark.parametrize("in_flight, recompute", [(True, True), (True, False), (False, True)])
def test_each_token_has_the_version_that_sampled_it(in_flight: bool, recompute: bool) -> None:
    """In flight a reply goes from one version to the next; else it ends first, and a later one waits. Log-probs are
    those of a plain forward under the version, except after an update that keeps the cache.
    """
    first, second, modules = sampled_during_an_update(in_flight, recompute)

    assert list(first.versions) == sorted(first.versions)
    assert {1} == set(second.versions)
    assert 0 == first.versions[0]
    if not in_flight:
        assert {0} == set(first.versions)
    ids = [*PROMPT, *first.ids]
    with torch.no_grad():
        by_version = [module(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1) for module in modules]
    for at, (token, logp, version) in enumerate(zip(first.ids, first.logps, first.versions, strict=True), len(PROMPT)):
        if version == 0 or recompute:
            assert logp == pytest.approx(float(by_version[version][at - 1, token]), abs=1e-4)
