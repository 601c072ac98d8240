"""Low-rank adapters are found by a run, and what is missing is named."""

from __future__ import annotations

import pytest
import torch

import quintain_lora.adapters
from quintain.errors import UsageError
from quintain.models import installed_adapters
from quintain.registry.lookup import isolated

from ...core.models.tiny import tiny_model


def test_a_run_finds_the_plugin() -> None:
    """Its functions are those that a run asks for; adapters alone train."""
    found = installed_adapters()
    adapted = found.with_adapters(tiny_model("qwen3"), {"r": 2})

    assert found is quintain_lora.adapters
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name.rpartition("layers.0.")[2] for name in trained if "layers.0." in name} >= {
        "self_attn.q_proj.lora_A.default.weight",
        "mlp.down_proj.lora_B.default.weight",
    }
    assert all(".lora_" in name for name in trained)


def test_without_the_plugin_the_error_names_it() -> None:
    with (
        isolated(keep=["quintain"]),
        pytest.raises(UsageError, match=r"pip install 'quintain\[lora\]'"),
    ):
        installed_adapters()


def test_a_base_has_one_digest_with_and_without_adapters() -> None:
    """Also where its weights have been changed after the digest was noted."""
    found = installed_adapters()
    module = tiny_model("qwen3")
    plain = found.digest_of(module)
    adapted = found.with_adapters(module, {"r": 2})
    assert found.digest_of(adapted) == plain

    found.note_digest(adapted)
    with torch.no_grad():
        next(adapted.parameters()).add_(1)
    assert found.digest_of(adapted) == plain
    assert found.digest_of(tiny_model("qwen3", seed=1)) != plain
