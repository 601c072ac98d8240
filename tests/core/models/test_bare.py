"""Weights without the model classes of transformers: the same answers, and nothing else is read."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models.bare import BareModel, bare_model
from quintain.models.load import load_model
from quintain.types.sampling import Sampling

from .tiny import save_tiny


def test_it_answers_as_the_module_does(tmp_path: Path) -> None:
    """Bit for bit, with the same ids that end a reply."""
    save_tiny(tmp_path, "qwen3")

    async def sampled(checked: bool) -> Any:
        async with EmbeddedEngine(str(tmp_path), checked=checked) as engine:
            ids = engine.tokenizer.encode("What is 2 + 3?")
            answer = await engine.sample(ids, Sampling(max_tokens=24, seed=3))
            found = engine.tokenizer
            return type(engine._module), (
                answer.ids,
                answer.logps,
                engine.context,
                found.stop_ids,
                found.name,
            )

    (own, expected), (bare, actual) = (asyncio.run(sampled(checked)) for checked in (True, False))
    assert bare is BareModel is not own
    assert actual == expected


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": None},
        {"use_sliding_window": True},
        {"dtype": "bfloat16"},
        {"num_hidden_layers": 3},
    ],
)
def test_what_it_does_not_know_is_left_to_transformers(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    save_tiny(tmp_path, "qwen3")
    assert bare_model(tmp_path) is not None
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))

    assert bare_model(tmp_path) is None


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_other_families_load_as_always(tmp_path: Path, kind: str) -> None:
    save_tiny(tmp_path, kind)
    loaded = load_model(tmp_path, bare=True)

    assert not isinstance(loaded.module, BareModel)


def test_damaged_weights_are_named_as_always(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen3")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UsageError, match="the folder is damaged"):
        load_model(tmp_path, bare=True)


ANSWER = """
import asyncio, sys
from quintain import Sampling
from quintain.engine.embedded import EmbeddedEngine
async def answer():
    async with EmbeddedEngine(sys.argv[1], checked=False) as engine:
        await engine.sample(engine.tokenizer.encode("1 + 1"), Sampling(max_tokens=4))
asyncio.run(answer())
print(*sorted({"torch._dynamo", "torch.distributed.tensor", "transformers.modeling_utils"} & sys.modules.keys()))
"""


@pytest.mark.slow
def test_an_answer_imports_neither_model_classes_nor_the_compiler(tmp_path: Path) -> None:
    """They take more CPU time than torch itself."""
    save_tiny(tmp_path, "qwen3")
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
