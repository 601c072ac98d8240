"""An output layer with an adapter against the merged layer in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintain.models.head import LogitMap
from quintain_gateway.tinker import head
from quintain_gateway.tinker.head import adapted_logps

WORDS, WIDTH, RANK, SCALE = 37, 12, 3, 8.0


def given(dtype: torch.dtype) -> tuple[Tensor, nn.Linear, tuple[Tensor, Tensor], Tensor]:
    draw = torch.Generator().manual_seed(0)
    layer = nn.Linear(WIDTH, WORDS).requires_grad_(False)
    layer.weight.copy_(torch.randn(WORDS, WIDTH, generator=draw))
    layer.bias.copy_(torch.randn(WORDS, generator=draw))
    hidden, first, second = (
        torch.randn(shape, generator=draw).to(dtype).requires_grad_()
        for shape in ((11, WIDTH), (RANK, WIDTH), (WORDS, RANK))
    )
    ids = torch.randint(WORDS, (11, 2), generator=draw)
    ids[0] = 5  # one token twice
    return hidden, layer.to(dtype), (first, second), ids


@pytest.mark.parametrize("chunk", [1 << 24, 3 * WORDS])
@pytest.mark.parametrize("mapped", [LogitMap(), LogitMap(scale=0.5, cap=4.0)])
def test_log_probs_and_gradients_are_those_of_the_merged_layer(
    mapped: LogitMap, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", chunk)

    def computed(dtype: torch.dtype, logps: Any) -> tuple[Tensor, ...]:
        hidden, layer, factors, ids = given(dtype)
        found = logps(hidden, layer, factors, ids)
        weights = torch.linspace(-1, 2, found.numel()).view_as(found).to(found)
        return (found, *torch.autograd.grad((found * weights).sum(), (hidden, *factors)))

    def merged(hidden: Tensor, layer: Any, factors: tuple[Tensor, Tensor], ids: Tensor) -> Tensor:
        weight = layer.weight + SCALE * factors[1] @ factors[0]
        logits = mapped(hidden @ weight.T + layer.bias)
        return logits.log_softmax(1).gather(1, ids)

    def apart(hidden: Tensor, layer: Any, factors: tuple[Tensor, Tensor], ids: Tensor) -> Tensor:
        return adapted_logps(hidden, layer, factors, SCALE, ids, mapped)

    expected = computed(torch.float64, merged)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for one, other in zip(computed(dtype, apart), expected, strict=True):
            scale = float(other.detach().abs().max())
            torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * scale)
