"""Low-rank adapters: what trains, what identifies their base, and what is missing without peft."""

from __future__ import annotations

import re

import pytest
import torch

from quintain.errors import UsageError
from quintain.models import lora

from .tiny import tiny_model


def test_adapters_alone_train() -> None:
    """Of all linear maps by default."""
    adapted = lora.with_adapters(tiny_model("qwen3"), {"r": 2})

    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name.rpartition("layers.0.")[2] for name in trained if "layers.0." in name} >= {
        "self_attn.q_proj.lora_A.default.weight",
        "mlp.down_proj.lora_B.default.weight",
    }
    assert all(".lora_" in name for name in trained)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target_modules": ["q_proj", "v_porj"]}, "no 'v_porj'; did you mean 'v_proj'"),
        ({"target_parameters": ["experts.gate"]}, "target_parameters: the model has no"),
        ({"target_modules": "("}, "unterminated subpattern"),
        ({"lora_alpha": 0}, "never change anything"),
    ],
)
def test_adapters_that_would_not_train_are_refused(settings: dict[str, object], words: str) -> None:
    """peft leaves out each name that matches nothing as long as one does."""
    with pytest.raises(UsageError, match=re.escape(words)):
        lora.with_adapters(tiny_model("qwen3"), {"r": 2, **settings})


def test_without_peft_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'quintain\[lora\]'"):
        lora.with_adapters(tiny_model("qwen3"), {"r": 2})


def test_a_base_has_one_digest_with_and_without_adapters() -> None:
    """Also where its weights have been changed after the digest was noted."""
    module = tiny_model("qwen3")
    plain = lora.digest_of(module)
    adapted = lora.with_adapters(module, {"r": 2})
    assert lora.digest_of(adapted) == plain

    lora.note_digest(adapted)
    with torch.no_grad():
        next(adapted.parameters()).add_(1)
    assert lora.digest_of(adapted) == plain
    assert lora.digest_of(tiny_model("qwen3", seed=1)) != plain
