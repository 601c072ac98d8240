"""The operations between the matrix products as single differentiable functions, for training on
our own layers.

Autograd would keep a dozen temporaries of the size of the hidden states for norms, rotary
embeddings and the gated activation, which is a quarter to a third more memory and 2 to 13 % more
time per update (``docs/decisions/0027``). Each function here keeps its input only and writes its
gradient in place into one buffer. Inside, math is float32 at least; outputs have the type of the
next product.

Shapes: F tokens laid flat, D hidden size, H query heads, K key heads, E head size, W width of the
feed-forward network.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .layers import Decoder, Layer, product_type


class TrainingDecoder(Decoder):
    """A `Decoder` on the functions below, for flat tokens; its results are the same up to
    rounding.
    """

    def rms_norm(self, norm: Any, hidden: Tensor) -> Tensor:
        return cast(
            Tensor,
            _RmsNorm.apply(hidden, norm.weight, norm.variance_epsilon, product_type(hidden)),
        )

    def split_heads(
        self, layer: Layer, joined: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, epsilon = self.head_norm(layer)
        shape = (self.heads, self.key_heads, self.head_dim)
        return cast(Any, _Heads.apply(joined, weight, cos, sin, shape, epsilon))

    def gated(self, joined: Tensor) -> Tensor:
        return cast(Tensor, _Gated.apply(joined))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """Return 1 / sqrt(mean x^2 + epsilon) over the last dimension, kept."""
    return (
        torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        .square_()
        .div_(x.shape[-1])
        .add_(epsilon)
        .rsqrt_()
    )


def _norm_backward(grad: Tensor, x: Tensor, inverse: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of y = x inverse(x) gain: for x, and for gain before the sum over
    tokens. Overwrites *grad*.
    """
    unit = x * inverse
    by_gain = grad * unit
    grad.mul_(gain)
    along = (by_gain * gain).mean(-1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1).mul_(inverse), by_gain


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, epsilon: float, kind: torch.dtype) -> Tensor:
        wide = _wide(x)
        inverse = _inverse_rms(wide, epsilon)
        ctx.save_for_backward(x, gain, inverse)
        return (wide * inverse).mul_(gain).to(kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, inverse = ctx.saved_tensors
        wide = _wide(x)
        grad = grad.to(wide.dtype, copy=True)
        by_x, by_gain = _norm_backward(grad, wide, inverse, gain)
        return by_x.to(x.dtype), by_gain.flatten(0, -2).sum(0).to(gain.dtype), None, None


class _Heads(torch.autograd.Function):
    """Joined projections [F, (H + 2 K) E] to rotated queries [F, H, E], rotated keys and values [F,
    K, E].
    """

    @staticmethod
    def forward(
        ctx: Any,
        joined: Tensor,
        gain: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        shape: tuple[int, int, int],
        epsilon: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, key_heads, size = shape
        blocks = joined.unflatten(-1, (-1, size))
        turned, value = blocks[:, : heads + key_heads], blocks[:, heads + key_heads :]
        wide = _wide(turned)
        inverse = None
        if gain is not None:
            inverse = _inverse_rms(wide, epsilon)
            wide = (wide * inverse).mul_(gain)
        out = _rotate(wide, cos, sin).to(joined.dtype)
        ctx.save_for_backward(joined, gain, inverse, cos, sin)
        ctx.shape = shape
        return out[:, :heads], out[:, heads:], value.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_query: Tensor, by_key: Tensor, by_value: Tensor
    ) -> tuple[Tensor | None, ...]:
        joined, gain, inverse, cos, sin = ctx.saved_tensors
        heads, key_heads, size = ctx.shape
        both = heads + key_heads
        grad = torch.empty_like(joined)
        out = grad.unflatten(-1, (-1, size))
        out[:, both:] = by_value
        back = _rotate(_wide(torch.cat([by_query, by_key], dim=1)), cos, -sin)
        by_gain = None
        if gain is not None:
            x = _wide(joined.unflatten(-1, (-1, size))[:, :both])
            back, by_gain = _norm_backward(back, x, inverse, gain)
            by_gain = by_gain.sum(0).to(gain.dtype)
        out[:, :both] = back
        return grad, by_gain, None, None, None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the half-split rotary embedding of [F, heads, E] by [F, E]; its transpose is the same
    with -sin.
    """
    half = x.shape[-1] // 2
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


class _Gated(torch.autograd.Function):
    """silu(gate) * up of [F, 2 W] laid side by side, to [F, W]."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        ctx.save_for_backward(joined)
        gate, up = joined.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (joined,) = ctx.saved_tensors
        gate, up = joined.chunk(2, dim=-1)
        out = torch.empty_like(joined)
        by_gate, by_up = out.chunk(2, dim=-1)
        torch.mul(grad, functional.silu(gate), out=by_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=by_gate)
        return out
