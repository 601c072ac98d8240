"""What a rank takes while it updates, beside its parts: layers that are whole for a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .experts import experts_of
from .shards import layers_of


def gathered_bytes(module: Any, *, gather: int, autocast: bool, split: int | None = None) -> int:
    """Return the bytes of gathered weights and of whole gradients at the peak of an update of
    *module*, which needs no weights.

    The root, which has embeddings and output layer, stays gathered from the first forward pass to the
    end of the last backward pass. Its gradient is whole then, and so is the copy of it that is added
    up.
    Before that, a layer takes the same beside the next one, which is gathered already.

    Args:
        gather: bytes of a number of a gathered layer.
        autocast: layers and output layer compute in half precision.
        split: ranks that split the experts of a layer, which then gathers none. A gradient of those
            that a rank has is in memory of its own until it is added to that of earlier
            micro-batches.
    """
    layers = layers_of(module)
    experts = [p for part in experts_of(module) if split for p in part.parameters()]
    apart = set(map(id, experts))
    of_layers = {id(p) for layer in layers for p in layer.parameters()}
    root = [p for p in module.parameters() if id(p) not in of_layers]
    gathered = [[p for p in layer.parameters() if id(p) not in apart] for layer in layers]
    largest = max(gathered, key=lambda parameters: _bytes(parameters, gather))
    weights, gradients = _bytes(root, 4), _bytes([p for p in root if p.requires_grad], 4)
    trained = [p for p in largest if p.requires_grad]
    layer = 2 * _bytes(largest, gather) + _bytes(trained, gather) + _bytes(trained, 4)
    if split:
        layer += max(_bytes(part.parameters(), 4) for part in experts_of(module)) // split
    peak = weights + gradients + max(gradients, layer)
    if not autocast:
        return peak
    head = module.get_output_embeddings().weight.numel()
    # The output layer in half precision, and what a chunk adds to its gradient; autocast keeps its
    # copies of float32 layers until the backward pass.
    rounded = sum(p.numel() for part in gathered for p in part) if gather == 4 else 0
    if split:  # those of a rank in half precision, until the backward pass
        rounded += sum(p.numel() for p in experts) // split
    return int(peak + 2 * head + (2 * head if gradients else 0) + 2 * rounded)


def _bytes(parameters: Any, size: int) -> int:
    tensors: list[Tensor] = list(parameters)
    return sum(p.numel() * size for p in tensors)
