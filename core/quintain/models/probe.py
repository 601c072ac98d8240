"""The probe: log-probs of a short text from a module's own forward, which every faster forward must
reproduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, cast

import torch
from torch import Tensor, nn

from .head import LogitMap

TOLERANCE = 1e-3
"""Nats by which log-probs may differ where the weights have 24 bits of mantissa or more."""


def plain_log_probs(module: nn.Module, ids: Sequence[int]) -> Tensor:
    """Return the log-probs of the next token after each of *ids*, [T, V], from the module's own
    forward.
    """
    return log_probs(_logits(module, ids))


def _logits(module: nn.Module, ids: Sequence[int]) -> Tensor:
    first = next(module.parameters())
    device = "cpu" if first.is_meta else first.device  # other processes may have the weights
    return cast(Any, module)(
        input_ids=torch.tensor([list(ids)], device=device), use_cache=False
    ).logits[0]


@torch.no_grad()
def logit_map_of(module: nn.Module) -> LogitMap:
    """Find what *module* does to the product of its output layer.

    The layer's output is replaced by known values, from tiny to huge, so that the result does not
    depend on weights: a soft cap at 30 is invisible in the logits of a new model. A module without
    weights computes nothing, and has none.
    """
    if next(module.parameters()).is_meta:
        return LogitMap(scale=1.0, cap=inf)
    known = torch.tensor([1e-6, 1e30], dtype=torch.float64, device=next(module.parameters()).device)
    head = cast(Any, module).get_output_embeddings()

    def replaced(_layer: nn.Module, _args: Any, product: Tensor) -> Tensor:
        return known.repeat(product.shape[-1] // 2 + 1)[: product.shape[-1]].expand(product.shape)

    hook = head.register_forward_hook(replaced)
    try:
        small, large = (float(x) for x in _logits(module, [0])[-1, :2])
    finally:
        hook.remove()
    return LogitMap(scale=round(small / 1e-6, 12), cap=large if large < 1e20 else inf)


def log_probs(logits: Tensor) -> Tensor:
    """Return the log-softmax over the last dimension, in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def agree(log_probs: Tensor, plain: Tensor, weights: torch.dtype) -> bool:
    """Return whether *log_probs* equal *plain* up to rounding; NaN does not.

    With *weights* in half precision each order of operations rounds differently: 8 bits of mantissa
    explain 2 %.
    """
    wide = weights in (torch.float32, torch.float64)
    limit = TOLERANCE if wide else 0.02 * (1 + float(plain.abs().max()))
    return float((log_probs - plain).abs().max()) <= limit
