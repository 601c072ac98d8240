"""The product of one input with several linear maps side by side, which keeps no copy of their weights.

Concatenated by autograd, the weights of all such maps, two thirds of a layer, would lie in memory
again until the backward pass, and once more in half precision under autocast.

Shapes: R rows of D numbers, mapped to O, the outputs of all parts together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Join = Callable[[Sequence[Tensor]], Tensor]


def joined_product(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], join: Join
) -> Tensor:
    """Map *x* [..., D] to [..., O].

    Args:
        weights: of the parts, [O_i, D].
        biases: of the parts, [O_i], or none.
        join: returns *weights* as one tensor, [O, D], which nothing keeps.
    """
    product: Any = _JoinedProduct
    return cast(Tensor, product.apply(x, join, len(weights), *weights, *biases))


class _JoinedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, join: Join, count: int, *parts: Tensor) -> Tensor:
        ctx.join, ctx.count, ctx.type = join, count, x.dtype
        kind = parts[0].dtype
        if torch.is_autocast_enabled(x.device.type):
            kind = torch.get_autocast_dtype(x.device.type)
            x = x.to(kind)
        weights, biases = parts[:count], parts[count:]
        ctx.save_for_backward(x, *weights)
        bias = torch.cat(biases).to(kind) if biases else None
        return functional.linear(x, join(weights).to(kind), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows_RO = grad.flatten(0, -2)
        by_x = None
        if ctx.needs_input_grad[0]:
            by_rows = rows_RO @ ctx.join(weights).to(grad.dtype)
            by_x = by_rows.view_as(x).to(ctx.type)
        sizes = [weight.shape[0] for weight in weights]
        wanted = ctx.needs_input_grad[3:]
        by_parts: list[Tensor | None] = [None] * len(wanted)
        if any(wanted[: ctx.count]):
            by_weight = (rows_RO.t() @ x.flatten(0, -2)).to(weights[0].dtype)
            by_parts[: ctx.count] = by_weight.split(sizes)
        if any(wanted[ctx.count :]):
            by_parts[ctx.count :] = rows_RO.sum(0).to(weights[0].dtype).split(sizes)
        kept = (part if one else None for part, one in zip(by_parts, wanted, strict=True))
        return (by_x, None, None, *kept)
