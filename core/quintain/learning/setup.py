"""A module made ready to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..models.load import without_dropout
from ..models.lora import with_adapters


def ready(module: nn.Module, lora: Mapping[str, Any] | None) -> nn.Module:
    """Float32 at least, no dropout, adapters attached where asked."""
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters()):
        module.float()
    if lora is not None:
        module = with_adapters(module, lora)
    without_dropout(module)
    return module


def decay_groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of AdamW: matrices alone decay."""
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
