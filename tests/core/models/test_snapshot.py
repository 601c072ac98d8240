"""The engine's copy of the learner's weights is the model as transformers loads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quintain.models.load import without_dropout
from quintain.models.snapshot import Snapshot

from .architectures import ARCHITECTURES, architecture, kinds_first


@pytest.mark.keeps("llama", "gemma4", "glm4-moe")
@pytest.mark.parametrize("name", kinds_first(ARCHITECTURES))
def test_a_cast_copy_is_what_transformers_loads_in_that_type(name: str, tmp_path: Path) -> None:
    """The same logits, bit for bit. Tables that are not weights, such as the frequencies of rotary
    embeddings, stay in float32: rounded, they would turn late positions by whole radians.
    """
    module = architecture(name)
    without_dropout(module)
    module.save_pretrained(tmp_path)
    attention = module.config._attn_implementation
    loaded = type(module).from_pretrained(
        tmp_path, dtype=torch.bfloat16, attn_implementation=attention
    )
    snapshot = Snapshot.needed(module, "bfloat16")
    assert snapshot is not None
    buffers = dict(loaded.named_buffers())
    for buffer_name, buffer in snapshot.module.named_buffers():
        assert buffer.dtype == buffers[buffer_name].dtype, buffer_name
        assert torch.equal(buffer, buffers[buffer_name]), buffer_name
    ids = torch.arange(24)[None] % 60
    with torch.no_grad():
        actual, expected = (m(input_ids=ids).logits for m in (snapshot.module, loaded.eval()))
    assert torch.equal(actual, expected)
