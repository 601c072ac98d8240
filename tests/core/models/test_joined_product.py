"""The product of joined maps has the bits of a product with concatenated weights, and keeps none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from quintain.models.layers import Decoder, JoinedLinear, fuse_storage

from .tiny import tiny_model


def maps(dtype: torch.dtype, *, bias: bool) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(24, rows, bias=bias, dtype=dtype) for rows in (40, 8, 8)]


def results(x: Tensor, parts: list[nn.Linear], mapped: Tensor) -> list[Tensor]:
    """What the maps return, and the gradients of all."""
    leaves = [x, *(p for part in parts for p in part.parameters())]
    weights = torch.linspace(-1, 1, mapped.numel()).view_as(mapped)
    return [mapped.detach(), *torch.autograd.grad((mapped.float() * weights).sum(), leaves)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(30, 24), (3, 10, 24)], ids=["flat", "batch"])
def test_bits_are_those_of_concatenated_weights(
    shape: tuple[int, ...], dtype: torch.dtype, autocast: bool, bias: bool
) -> None:
    parts = maps(dtype, bias=bias)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        biases = torch.cat([part.bias for part in parts]) if bias else None
        wanted = functional.linear(x, torch.cat([part.weight for part in parts]), biases)
        found = JoinedLinear(*parts)(x)
    assert found.dtype == wanted.dtype
    for one, other in zip(results(x, parts, found), results(x, parts, wanted), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_only_what_trains_has_a_gradient() -> None:
    parts = maps(torch.float32, bias=True)
    parts[1].weight.requires_grad_(False)
    parts[2].bias.requires_grad_(False)
    JoinedLinear(*parts)(torch.ones(2, 24)).sum().backward()
    trained = [p.grad is not None for part in parts for p in (part.weight, part.bias)]
    assert trained == [True, True, False, True, True, False]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_copy_of_the_weights_is_kept(fused: bool, autocast: bool) -> None:
    """What autograd saves of a layer's joined maps is their input and the parameters."""
    model = tiny_model("qwen3")
    assert not fused or fuse_storage(model)
    decoder: Any = Decoder.of(model)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    x = torch.ones(5, 32)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved.append(tensor)
        return tensor

    layer = decoder.layers[0]
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        both = [layer.qkv(x), layer.gate_up(x)]
    assert all(mapped.requires_grad for mapped in both)
    assert [tensor.shape for tensor in saved] == [x.shape] * 2


def test_weights_that_change_before_the_backward_pass_are_an_error() -> None:
    parts = maps(torch.float32, bias=False)
    mapped = JoinedLinear(*parts)(torch.ones(2, 24, requires_grad=True))
    with torch.no_grad():
        parts[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mapped.sum().backward()
