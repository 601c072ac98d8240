"""Weight updates while the embedded engine samples: which version each token has, and under which
weights.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from quintain.engine.embedded import EmbeddedEngine
from quintain.learning import ModuleWeights
from quintain.models.tokenizer import HFTokenizer
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from ..models.tiny import byte_tokenizer, tiny_model

PROMPT = [1, 2, 3, 4]


def sampled_during_an_update(
    in_flight: bool, recompute: bool
) -> tuple[Sampled, Sampled, list[Any]]:
    """A reply with an update after its first tokens, one that was requested with the update, the
    modules by version.
    """
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
        assert await update == 1
        return await first, await second

    return *asyncio.run(go()), modules


def test_caches_are_computed_again_in_passes_of_limited_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows at once would take the memory of their longest for each: gigabytes where the cache
    itself fits.
    """
    monkeypatch.setattr("quintain.engine.embedded.PREFILL_TOKENS", 60)
    modules, passes = [tiny_model(seed=seed) for seed in range(2)], list[int]()
    engine = EmbeddedEngine.sharing(modules[0], HFTokenizer(byte_tokenizer()), copy=True)
    engine.tokenizer.stop_ids = ()  # type: ignore[misc]  # every reply is longer than the update takes
    forward: Any = engine._forward
    extend = forward.extend

    def counted(rows: Any, ids: Any, starts: Any) -> Any:
        passes.append(len(rows) * max(map(len, ids)))
        return extend(rows, ids, starts)

    async def go() -> list[Sampled]:
        prompts = [list(range(1, 10 + 9 * i)) for i in range(8)]
        tasks = [
            asyncio.create_task(engine.sample(p, Sampling(max_tokens=200, seed=1))) for p in prompts
        ]
        while len(engine._running()) < 8:  # noqa: ASYNC110 -- the engine has no event for it
            await asyncio.sleep(0)
        monkeypatch.setattr(forward, "extend", counted)
        await engine.update(ModuleWeights(modules[1], 1))
        monkeypatch.setattr(forward, "extend", extend)
        return await asyncio.gather(*tasks)

    outs = asyncio.run(go())
    assert passes
    assert max(passes) <= 60
    for i, out in enumerate(outs):
        ids, start = [*range(1, 10 + 9 * i), *out.ids], 9 + 9 * i
        with torch.no_grad():
            new = modules[1](input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [float(new[at - 1, ids[at]]) for at, v in enumerate(out.versions, start) if v == 1]
        assert own
        assert own == pytest.approx(
            [x for x, v in zip(out.logps, out.versions, strict=True) if v], abs=1e-4
        )


@pytest.mark.parametrize("in_flight, recompute", [(True, True), (True, False), (False, True)])
def test_each_token_has_the_version_that_sampled_it(in_flight: bool, recompute: bool) -> None:
    """In flight a reply goes from one version to the next; else it ends first, and a later one
    waits. Log-probs are those of a plain forward under the version, except after an update that
    keeps the cache.
    """
    first, second, modules = sampled_during_an_update(in_flight, recompute)

    assert list(first.versions) == sorted(first.versions)
    assert {1} == set(second.versions)
    assert first.versions[0] == 0
    if not in_flight:
        assert {0} == set(first.versions)
    ids = [*PROMPT, *first.ids]
    with torch.no_grad():
        by_version = [
            module(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1) for module in modules
        ]
    for at, (token, logp, version) in enumerate(
        zip(first.ids, first.logps, first.versions, strict=True), len(PROMPT)
    ):
        if version == 0 or recompute:
            assert logp == pytest.approx(float(by_version[version][at - 1, token]), abs=1e-4)
