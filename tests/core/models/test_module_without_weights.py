"""A module whose parameters have no memory is otherwise the one that is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quintain.errors import UsageError
from quintain.models.load import module_without_weights

from .architectures import ARCHITECTURES, architecture, kinds_first


@pytest.mark.keeps("llama", "gemma4", "deepseek-v3")
@pytest.mark.parametrize("name", kinds_first(ARCHITECTURES))
def test_only_the_numbers_of_parameters_are_missing(name: str, tmp_path: Path) -> None:
    """Names, shapes, types and tables, such as the frequencies of rotary embeddings, bit for bit; or
    a table that is not computed is named.
    """
    saved = architecture(name)
    saved.save_pretrained(tmp_path)
    loaded = type(saved).from_pretrained(tmp_path, dtype=torch.float32)
    try:
        hollow = module_without_weights(str(tmp_path), torch.float32, None)
    except UsageError as error:
        assert "has a table of its own" in str(error)
        return
    assert type(hollow) is type(loaded)
    expected = [(n, p.shape, p.dtype) for n, p in loaded.named_parameters()]
    assert [(n, p.shape, p.dtype) for n, p in hollow.named_parameters()] == expected
    assert all(p.is_meta for p in hollow.parameters())
    buffers = dict(hollow.named_buffers())
    assert buffers.keys() == dict(loaded.named_buffers()).keys()
    for buffer_name, buffer in loaded.named_buffers():
        assert torch.equal(buffers[buffer_name], buffer), buffer_name
        assert buffers[buffer_name].dtype == buffer.dtype, buffer_name
    assert hollow.generation_config.to_dict() == loaded.generation_config.to_dict()


def test_attention_with_a_soft_cap_keeps_it(tmp_path: Path) -> None:
    architecture("gemma2").save_pretrained(tmp_path)
    hollow = module_without_weights(str(tmp_path), torch.float32, None)
    assert hollow.config._attn_implementation == "eager"
