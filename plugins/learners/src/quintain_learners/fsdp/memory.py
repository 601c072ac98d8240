"""What a rank takes while it updates, beside its parts: layers that are whole for a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .shards import layers_of


def gathered_bytes(module: Any, *, gather: int, autocast: bool) -> int:
    """Return the bytes of gathered weights and of whole gradients at the peak of an update of
    *module*, which needs no weights.

    The root, which has embeddings and output layer, stays gathered from the first forward pass to the
    end of the last backward pass. Its gradient is whole then, and so is the copy of it that is added
    up.
    Before that, a layer takes the same beside the next one, which is gathered already.

    Args:
        gather: bytes of a number of a gathered layer.
        autocast: layers and output layer compute in half precision.
    """
    layers = layers_of(module)
    of_layers = {id(p) for layer in layers for p in layer.parameters()}
    root = [p for p in module.parameters() if id(p) not in of_layers]
    largest = max(layers, key=lambda layer: _bytes(layer.parameters(), gather))
    weights, gradients = _bytes(root, 4), _bytes([p for p in root if p.requires_grad], 4)
    trained = [p for p in largest.parameters() if p.requires_grad]
    layer = 2 * _bytes(largest.parameters(), gather) + _bytes(trained, gather) + _bytes(trained, 4)
    peak = weights + gradients + max(gradients, layer)
    if not autocast:
        return peak
    head = module.get_output_embeddings().weight.numel()
    # The output layer in half precision, and what a chunk adds to its gradient; autocast keeps its
    # copies of float32 layers until the backward pass.
    rounded = sum(p.numel() for layer in layers for p in layer.parameters()) if gather == 4 else 0
    return int(peak + 2 * head + (2 * head if gradients else 0) + 2 * rounded)


def _bytes(parameters: Any, size: int) -> int:
    tensors: list[Tensor] = list(parameters)
    return sum(p.numel() * size for p in tensors)
