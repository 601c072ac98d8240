"""The probe: log-probs of a short text from a module's own forward, which every faster forward must reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

TOLERANCE = 1e-3
"""Nats by which log-probs may differ where the weights have 24 bits of mantissa or more."""


def plain_log_probs(module: nn.Module, ids: Sequence[int]) -> Tensor:
    """Log-probs of the next token after each of *ids*, [T, V], from the module's own forward."""
    device = next(module.parameters()).device
    logits_TV = cast(Any, module)(input_ids=torch.tensor([list(ids)], device=device), use_cache=False).logits[0]
    return log_probs(logits_TV)


def log_probs(logits: Tensor) -> Tensor:
    """Log-softmax over the last dimension, in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def agree(log_probs: Tensor, plain: Tensor, weights: torch.dtype) -> bool:
    """Whether *log_probs* equal *plain* up to rounding; NaN does not.

    With *weights* in half precision each order of operations rounds differently: 8 bits of mantissa explain 2 %.
    """
    wide = weights in (torch.float32, torch.float64)
    limit = TOLERANCE if wide else 0.02 * (1 + float(plain.abs().max()))
    return float((log_probs - plain).abs().max()) <= limit
