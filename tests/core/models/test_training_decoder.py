"""The decoder of training: the same values and gradients as autograd, and less kept for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintain.models.forward import Forward
from quintain.models.layers import Decoder
from quintain.models.prefix_layout import TokenSequence
from quintain.models.training_decoder import TrainingDecoder

from .tiny import tiny_model

ROW = TokenSequence(ids=tuple(range(3, 43)), positions=tuple(range(1, 40)))


def trained(module: nn.Module, *, fused: bool) -> tuple[Forward, list[Tensor], int]:
    """The forward pass, the gradients of all weights, and the bytes that autograd kept for them."""
    kept = dict[int, int]()
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)  # so that no address is used again
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    forward = Forward(module)
    if not fused:
        forward.decoder = Decoder.of(module)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward.hidden([[ROW]]).square().mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return forward, [g for g in gradients if g is not None], sum(kept.values())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_gradients_are_those_of_autograd_and_less_is_kept(kind: str) -> None:
    """Compared with the layers of decoding, which autograd differentiates."""
    module: Any = tiny_model(kind)
    plain, expected, plain_bytes = trained(module, fused=False)
    fused, gradients, fused_bytes = trained(module, fused=True)

    assert type(plain.decoder) is Decoder
    assert type(fused.decoder) is TrainingDecoder
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert fused_bytes < 0.85 * plain_bytes
