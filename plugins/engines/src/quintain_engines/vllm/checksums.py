"""Checksums of weights: of what the learner published, and of what the engine computes with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .canary import base_of, unties_embeddings

CHUNK = 2**22
"""Numbers that are widened to 64 bits at once."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor, *, first_column: int = 0) -> int:
    """Sum of the bit patterns of *tensor* times a factor of the row and one of the column, modulo
    2^64.

    A number that differs, two that changed places and a transposed matrix change it; -0 counts as
    0. All but the last dimension are rows. Checksums of the parts of a matrix that is cut between
    columns add up to its own.

    Args:
        first_column: of the whole matrix, where *tensor* is a part.
    """
    matrix = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.ndim else 1)
    rows, columns = matrix.shape
    row_factors = _factors(0, rows, 1, matrix.device)
    column_factors = _factors(first_column, columns, 2, matrix.device)
    total, step = 0, max(1, CHUNK // max(1, columns))
    for first in range(0, rows, step):
        part = (matrix[first : first + step] + 0.0).contiguous()
        bits = part.view(_BITS[part.element_size()]).to(torch.int64)
        sums = (bits * column_factors).sum(-1) * row_factors[first : first + step]
        total += int(sums.sum())
    return total % 2**64


def _factors(first: int, count: int, stream: int, device: torch.device) -> Tensor:
    """Return odd factors for the positions from *first* on, [count] (Steele et al. 2014,
    splitmix64).
    """
    mixed = torch.arange(first, first + count, dtype=torch.int64, device=device) * 2 + stream
    for shift, multiplier in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ (mixed >> shift)) * multiplier
    return (mixed ^ (mixed >> 31)) | 1


def differing(published: Iterable[tuple[str, Tensor]], computed: Mapping[str, Any]) -> str:
    """Return the first tensor of *published* whose checksum in the engine's type is another than in
    *computed*; empty if there is none. Names of either alone are not compared.

    Args:
        computed: by name, type and checksum of what the engine has, from `readback`.
    """
    for name, tensor in published:
        if name in computed:
            kind, expected = computed[name]
            if checksum(tensor.to(getattr(torch, kind))) != expected:
                return name
    return ""


def in_engine_layout(module: Any, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield *tensors*, weights of *module* by name, as [outputs, inputs], and the output layer of
    tied ones: the linear maps of GPT-2 have them the other way round. One at a time: those of ranks
    arrive so.
    """
    base = base_of(module)
    turned = {
        f"{name}.weight" for name, part in base.named_modules() if type(part).__name__ == "Conv1D"
    }
    shared = ""
    if not unties_embeddings(module) and "lm_head.weight" not in tensors:
        tied = base.get_input_embeddings().weight
        shared = next(name for name, parameter in base.named_parameters() if parameter is tied)
    for name, tensor in tensors.items():
        yield name, tensor.t() if name in turned else tensor
        if name == shared:
            yield "lm_head.weight", tensor


def frozen_tensors(module: Any) -> dict[str, Tensor]:
    """Return the weights under the adapters of *module*, by their names in its checkpoint."""
    return {
        name.replace(".base_layer", ""): tensor.detach()
        for name, tensor in base_of(module).named_parameters()
        if ".lora_" not in name
    }


def adapter_factors(module: Any, dtype: str) -> dict[str, Tensor]:
    """Return A, and B times its scale, of each adapted layer as `readback.adapters_of` reads them
    from vLLM: both in *dtype*, B transposed.
    """
    factors: dict[str, Tensor] = {}
    kind = getattr(torch, dtype)
    for name, part in base_of(module).named_modules():
        if not hasattr(part, "lora_A"):
            continue
        for adapter in part.active_adapters:
            if adapter in part.lora_A:
                factors[f"{name}.lora_A"] = part.lora_A[adapter].weight.detach().to(kind)
                # Cast first, then scaled, as vLLM does: the roundings have to be equal.
                b = part.lora_B[adapter].weight.detach().to(kind) * part.scaling[adapter]
                factors[f"{name}.lora_B"] = b.t()
    return factors
