"""Copies of weights in the layout that oneDNN's kernels read, for products without autograd on a CPU.

A product of few rows does little with each weight that it reads. From weights in rows torch reads
about 10 GB/s on two cores, from packed ones 20 to 25, and products of many rows gain, too
(``docs/decisions/0237``). The layout belongs to oneDNN, so a learner's weights cannot be kept in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

PACKED_BYTES = range(2**23, 2**31)
"""Weights of a model that are packed. Those of a smaller one stay in the caches of a processor; the
copy of a larger one takes memory that may be missing.
"""


def packs(device: str, dtype: torch.dtype, size: int) -> bool:
    """Return whether weights of *size* bytes in *dtype* on a *device* of that kind can be packed, and
    whether that pays.

    The size decides and no measurement, since the last digits of log-probs depend on it.
    """
    return device == "cpu" and size in PACKED_BYTES and _multiplies(dtype)


@cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Return whether products in *dtype* work here: operators of torch's compiler, which have no
    public name and are not in every build.
    """
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    ones = torch.ones(16, 16, dtype=dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight = torch.ops.mkldnn._reorder_linear_weight(ones)
        product = torch.ops.mkldnn._linear_pointwise(ones, weight, None, "none", [], "")
        added = torch.ops.mkldnn._linear_pointwise.binary(ones, ones, weight, None, "add")
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(product, 16 * ones) and torch.equal(added, 17 * ones)


class PackedLinear:
    """Linear maps of one input side by side, [..., D] to their outputs joined, from a packed copy."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self._parts = parts
        self._packed_at: list[tuple[int, int]] = []
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    def fresh(self) -> PackedLinear:
        """Return itself, packed again if a weight was moved or changed in place since."""
        tensors = [t for part in self._parts for t in (part.weight, part.bias) if t is not None]
        now = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
        if now != self._packed_at:
            with torch.no_grad():
                weights = [part.weight for part in self._parts]
                joined = torch.cat(weights) if len(weights) > 1 else weights[0]
                self._weight = torch.ops.mkldnn._reorder_linear_weight(joined)
                if self._parts[0].bias is not None:
                    self._bias = torch.cat([part.bias for part in self._parts])
            self._packed_at = now
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def add(self, hidden: Tensor, x: Tensor) -> Tensor:
        """Return *hidden* + the map of *x*, each [n, D]."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, hidden, self._weight, self._bias, "add")
