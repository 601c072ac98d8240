"""A model that does not train, as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain import Sampling
from quintain.engine import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models import load_model
from quintain_rewards.likelihood import FixedModelEngine, fixed_copy

from ....core.models.tiny import save_tiny


def test_it_samples_and_scores_as_the_embedded_engine_of_its_model(tmp_path: Path) -> None:
    """Equal ids and log-probs, and tokenizer and context of the model."""
    save_tiny(tmp_path / "model")
    model = load_model(tmp_path / "model")
    sampling = Sampling(max_tokens=4, seed=1)

    async def both() -> None:
        fixed = FixedModelEngine("fixed", slots=2)
        await fixed.start(model)
        async with fixed, EmbeddedEngine.sharing(model.module, model.tokenizer, slots=2) as plain:
            ids = fixed.tokenizer.encode("12+3=")
            assert await fixed.sample(ids, sampling) == await plain.sample(ids, sampling)
            assert await fixed.score(ids, 1) == await plain.score(ids, 1)
            assert fixed.context == plain.context

    asyncio.run(both())


class Newer:
    """Weights of a later version."""

    version = 1

    def tensors(self) -> Mapping[str, Any]:
        return {}


def test_it_refuses_weights_and_calls_before_its_start() -> None:
    """The errors name the player."""
    fixed = FixedModelEngine("frozen x", slots=1)

    with pytest.raises(UsageError, match="frozen x is not started"):
        asyncio.run(fixed.score([1, 2], 1))
    with pytest.raises(UsageError, match="frozen x keeps its weights"):
        asyncio.run(fixed.update(Newer()))


@pytest.mark.parametrize("adapters", [True, False])
def test_a_copy_merges_adapters_or_leaves_them_out(tmp_path: Path, adapters: bool) -> None:
    """Without them it is the model that they began from; the original keeps them."""
    save_tiny(tmp_path / "model")
    plain = load_model(tmp_path / "model").module
    module = load_model(tmp_path / "model", lora={"r": 2}).module
    for name, value in module.named_parameters():
        if "lora_B" in name:
            value.data.fill_(0.5)

    copied = fixed_copy(module, adapters=adapters)

    same = all(value.equal(plain.get_parameter(name)) for name, value in copied.named_parameters())
    assert same is not adapters
    assert hasattr(module, "peft_config")
    assert not hasattr(copied, "peft_config")
    assert not any(value.requires_grad for value in copied.parameters())
