"""A module made ready to train."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from ..errors import UsageError


def ready(module: nn.Module, lora: Mapping[str, Any] | None) -> nn.Module:
    """Float32 at least, no dropout, adapters attached where asked."""
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters()):
        module.float()
    if lora is not None:
        module = _with_adapters(module, lora)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0  # type: ignore[assignment]
    return module


def _with_adapters(module: nn.Module, lora: Mapping[str, Any]) -> nn.Module:
    try:
        import peft
    except ImportError as missing:
        raise UsageError("lora needs peft: pip install 'quintain[lora]'") from missing
    settings = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", **lora, "lora_dropout": 0.0}
    with warnings.catch_warnings():  # peft still asks transformers 5 by an older name
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        return peft.get_peft_model(cast(Any, module), peft.LoraConfig(**settings))


def decay_groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of AdamW: matrices alone decay."""
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
