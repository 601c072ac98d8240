"""Staleness: the sampler is a fixed number of synced versions behind, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.engine.embedded import EmbeddedEngine
from quintain.learning import ModuleWeights
from quintain.models.load import LoadedModel, trainable
from quintain.models.tokenizer import HFTokenizer
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe
from quintain.run.build import engine_for
from quintain.run.weight_sync import WeightSync
from quintain.types.sampling import Sampling

from ..models.tiny import byte_tokenizer, tiny_model

PROMPT = [1, 2, 3, 4]


def moved(module: Any, version: int) -> ModuleWeights:
    """The weights of another version: everything drifts a little."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.full_like(parameter, 0.01 * version))
    return ModuleWeights(module, version)


def copied(module: Any) -> Mapping[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def logps(module: Any, ids: list[int]) -> list[float]:
    with torch.no_grad():
        out = module(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(out[i - 1, ids[i]]) for i in range(len(PROMPT), len(ids))]


def recipe(**changes: Any) -> Recipe:
    return Recipe.of({"environments": [{"use": "arithmetic"}]}).replace(changes)


@pytest.mark.keeps("1-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_engine_samples_with_the_version_it_names(staleness: int, dtype: str) -> None:
    """After version n it is at n - staleness (at 0 in the beginning): version, tokens and log-probs
    are those of then.
    """
    learner = tiny_model(dtype=torch.float32)
    model = LoadedModel(
        module=learner, tokenizer=HFTokenizer(byte_tokenizer()), path="", context=512, fused=False
    )
    told = recipe(**{"model.dtype": dtype, "algorithm.args.plan.staleness": staleness})
    engine: EmbeddedEngine = engine_for(RunPlan.of(told), model)
    weight_sync = WeightSync(engine, staleness=staleness)
    versions = []

    async def go() -> None:
        await weight_sync.sync(ModuleWeights(learner, 0))
        versions.append(copied(learner))
        for version in range(1, 7):
            await weight_sync.sync(moved(learner, version))
            versions.append(copied(learner))
            expected = max(0, version - staleness)
            said = await engine.sample(PROMPT, Sampling(max_tokens=6, seed=version))
            assert {expected} == set(said.versions) == {engine.version}
            then = tiny_model()
            then.load_state_dict(dict(versions[expected]), strict=False)
            assert list(said.logps) == pytest.approx(logps(then, [*PROMPT, *said.ids]), abs=1e-4)
            async with weight_sync.newest(ModuleWeights(learner, version)):
                said = await engine.sample(PROMPT, Sampling(max_tokens=6, seed=version))
                assert {version} == set(said.versions)
                assert list(said.logps) == pytest.approx(
                    logps(learner, [*PROMPT, *said.ids]), abs=1e-4
                )
            assert expected == engine.version

    asyncio.run(go())
    if staleness:
        assert not {p.data_ptr() for p in learner.parameters()} & {
            p.data_ptr() for p in engine._module.parameters()
        }


def test_the_versions_in_between_survive_a_checkpoint() -> None:
    """A restored weight sync continues exactly as the old one; tied weights are held once."""
    learner = tiny_model()
    engines = [
        EmbeddedEngine.sharing(tiny_model(), HFTokenizer(byte_tokenizer()), copy=True)
        for _ in range(2)
    ]
    old, new = (WeightSync(e, staleness=2) for e in engines)

    async def go() -> None:
        for version in range(4):
            await old.sync(moved(learner, version))
        state = old.state()
        assert [held["version"] for held in state] == [1, 2]
        tied = state[0]["tensors"]
        assert tied["lm_head.weight"] is tied["model.embed_tokens.weight"]
        new.restore(state)
        await new.sync(ModuleWeights(learner, 3))
        for version in (4, 5, 6):
            weights = moved(learner, version)
            for weight_sync in (old, new):
                await weight_sync.sync(weights)
            said = [await e.sample(PROMPT, Sampling(max_tokens=8, seed=5)) for e in engines]
            assert said[0] == said[1]
            assert {version - 2} == set(said[0].versions)

    asyncio.run(go())


def test_syncing_the_same_version_again_changes_nothing() -> None:
    """A step that had nothing to learn from does not make the sampler catch up."""
    learner = tiny_model()
    engine = EmbeddedEngine.sharing(learner, HFTokenizer(byte_tokenizer()), copy=True)
    weight_sync = WeightSync(engine, staleness=1)

    async def go() -> list[int]:
        seen = []
        for version in (0, 1, 1, 1, 2):
            await weight_sync.sync(ModuleWeights(learner, version))
            seen.append(engine.version)
        return seen

    assert asyncio.run(go()) == [0, 0, 0, 0, 1]


def test_adapters_are_merged_into_what_is_held() -> None:
    """With LoRA the weight copy is the plain model, at the weights of its version."""
    pytest.importorskip("peft")
    learner = trainable(tiny_model(), {"r": 2})
    with torch.no_grad():
        for name, parameter in learner.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    engine = EmbeddedEngine.sharing(learner, HFTokenizer(byte_tokenizer()), copy=True)
    weight_sync = WeightSync(engine, staleness=1)

    async def go() -> None:
        await weight_sync.sync(ModuleWeights(learner, 0))
        said = await engine.sample(PROMPT, Sampling(max_tokens=6, seed=1))
        before = logps(learner, [*PROMPT, *said.ids])
        assert list(said.logps) == pytest.approx(before, abs=1e-4)
        with torch.no_grad():
            for name, parameter in learner.named_parameters():
                if "lora" in name:
                    parameter.mul_(1.5)
        await weight_sync.sync(ModuleWeights(learner, 1))
        again = await engine.sample(PROMPT, Sampling(max_tokens=6, seed=1))
        assert said == again
        assert logps(learner, [*PROMPT, *said.ids]) != pytest.approx(before, abs=1e-3)
        await weight_sync.sync(ModuleWeights(learner, 2))
        now = await engine.sample(PROMPT, Sampling(max_tokens=6, seed=1))
        assert list(now.logps) == pytest.approx(logps(learner, [*PROMPT, *now.ids]), abs=1e-4)

    asyncio.run(go())
