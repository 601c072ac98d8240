"""Log-probs of an output layer with an adapter, whose product with the base is never added up: a
merged copy and its gradient have the size of the layer, and cost more than the tokens of a short
request.

Shapes: N positions, D hidden size, R rank, V vocabulary, K ids per position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["adapted_logps"]

CHUNK_ELEMENTS = 1 << 24
"""Logits in memory at once. A request of one chunk keeps them for its gradient."""


def adapted_logps(
    hidden_ND: Tensor,
    head: Any,
    factors: tuple[Tensor, Tensor],
    scale: float,
    ids_NK: Tensor,
    logit_map: Any,
) -> Tensor:
    """Return the log-probs [N, K] of *ids_NK* under softmax(logit_map(hidden @ (weight + scale *
    second @ first).T + bias)), with gradients in *hidden_ND* and both factors.

    Args:
        head: the output layer, weight [V, D] and bias [V] or ``None``, which has no gradient.
        factors: first [R, D] and second [V, R].
        logit_map: `quintain.models.Forward.logit_map`.
    """
    first, second = factors
    low_NR = functional.linear(hidden_ND, first) * scale
    apply: Callable[..., Tensor] = _Logps.apply
    return apply(hidden_ND, low_NR, second, head.weight, head.bias, ids_NK, logit_map)


class _Logps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        low_NR: Tensor,
        second_VR: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        ids_NK: Tensor,
        logit_map: Any,
    ) -> Tensor:
        ctx.bias, ctx.map, ctx.logits = bias_V, logit_map, None
        given = (hidden_ND, low_NR, second_VR, weight_VD)
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        logp_NK = hidden_ND.new_empty(ids_NK.shape, dtype=wide)
        normaliser_N = hidden_ND.new_empty(len(ids_NK), dtype=wide)
        for part in _chunks(len(ids_NK), len(weight_VD)):
            logits_CV = _logits(ctx, part, *given)
            normaliser_N[part] = logits_CV.logsumexp(1)
            logp_NK[part] = logits_CV.gather(1, ids_NK[part]) - normaliser_N[part, None]
            if part.stop - part.start == len(ids_NK) and any(ctx.needs_input_grad):
                ctx.logits = logits_CV
        ctx.save_for_backward(*given, ids_NK, normaliser_N)
        return logp_NK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor | None, ...]:
        *given, ids_NK, normaliser_N = ctx.saved_tensors
        hidden_ND, low_NR, second_VR, weight_VD = given
        logits, ctx.logits = ctx.logits, None  # a second backward pass computes them again
        grad_hidden, grad_low = torch.empty_like(hidden_ND), torch.empty_like(low_NR)
        grad_second = torch.zeros_like(second_VR)
        for part in _chunks(len(ids_NK), len(weight_VD)):
            logits_CV = _logits(ctx, part, *given) if logits is None else logits
            slope_CV = ctx.map.slope(logits_CV)
            # d logp_k = 1_k - p
            grad_CV = logits_CV.sub_(normaliser_N[part, None]).exp_()
            grad_CV.mul_(-grad_NK[part].sum(1, keepdim=True))
            grad_CV.scatter_add_(1, ids_NK[part], grad_NK[part])
            if isinstance(slope_CV, Tensor) or slope_CV != 1.0:
                grad_CV.mul_(slope_CV)
            grad_CV = grad_CV.to(weight_VD.dtype)
            grad_hidden[part] = grad_CV @ weight_VD
            grad_low[part] = grad_CV @ second_VR
            grad_second += grad_CV.t() @ low_NR[part]
        return grad_hidden, grad_low, grad_second, None, None, None, None


def _chunks(count: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _logits(
    ctx: Any, part: slice, hidden_ND: Tensor, low_NR: Tensor, second_VR: Tensor, weight_VD: Tensor
) -> Tensor:
    product_CV = functional.linear(hidden_ND[part], weight_VD, ctx.bias)
    product_CV += functional.linear(low_NR[part], second_VR)
    logits: Tensor = ctx.map(product_CV.to(torch.promote_types(product_CV.dtype, torch.float32)))
    return logits
