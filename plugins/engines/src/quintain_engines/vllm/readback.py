"""What vLLM's model computes with, read through its own kernels; runs in vLLM's worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from .canary import FUSED
from .checksums import checksum

COLUMNS = 256
"""Columns of a weight that are read at once."""
Found = dict[str, tuple[str, int]]


@torch.inference_mode()
def weights_of(model: Any) -> Found:
    """Return type and checksum of each weight, under the names of a Hugging Face checkpoint.

    Linear maps are read by the rows of an identity matrix, which give each weight exactly: vLLM on
    a CPU computes with a packed copy and drops the weight. Quantised maps, the experts of a mixture
    and shards of tensor parallelism are left out.
    """
    found: Found = {}
    for name, layer in model.named_modules():
        parameters = dict(layer.named_parameters(recurse=False))
        method = getattr(layer, "quant_method", None)
        vocabulary = getattr(layer, "org_vocab_size", None)
        sizes = [vocabulary] if vocabulary else list(getattr(layer, "output_partition_sizes", ()))
        parts = parts_of(model, name.removesuffix(".base_layer"), len(sizes))
        if len(parts) != len(sizes):  # joined under names that are not known: one weight
            sizes = [sum(sizes)] if sizes else []
        if _is_shard(layer):
            continue
        if "weight" in parameters and (
            isinstance(method, UnquantizedLinearMethod) or isinstance(layer, ParallelLMHead)
        ):
            weight = parameters.pop("weight")
            for part, total in zip(parts, _linear(layer, weight, sizes), strict=True):
                found[f"{part}.weight"] = _type(weight), total
        elif method is not None and not isinstance(method, UnquantizedEmbeddingMethod):
            continue
        for leaf, parameter in parameters.items():
            rows = [parameter] if not sizes else parameter[: sum(sizes)].split(sizes)
            for part, piece in zip(parts, rows, strict=True):
                found[f"{part}.{leaf}"] = _type(parameter), checksum(piece)
    return {checkpoint_name(model, name): value for name, value in found.items()}


def checkpoint_name(model: Any, name: str) -> str:
    """Return what the weight, layer or factor *name* of vLLM's *model* is called in a checkpoint. A
    language model has the same names, one with pictures others.
    """
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None or not getattr(model, "supports_multimodal", False):
        return name
    for original, own in mapper.orig_to_new_prefix.items():
        if own and f"{name}.".startswith(own):
            return f"{original}{f'{name}.'.removeprefix(own)}".removesuffix(".")
    return name


def _is_shard(layer: Any) -> bool:
    pairs = (
        ("input_size_per_partition", "input_size"),
        ("output_size_per_partition", "output_size"),
        ("num_embeddings_per_partition", "num_embeddings_padded"),
    )
    # a convolution has the size of its input, and is no part of one
    return any(hasattr(layer, a) and getattr(layer, a) != getattr(layer, b, None) for a, b in pairs)


def parts_of(model: Any, name: str, count: int) -> list[str]:
    """Return the names of the *count* maps that layer *name* joins."""
    head, _, last = name.rpartition(".")
    joined = (getattr(model, "packed_modules_mapping", None) or FUSED).get(last, [last])
    if len(joined) != count:
        return [name]
    return [f"{head}.{part}" if head else part for part in joined]


def _linear(layer: Any, weight: Tensor, sizes: Sequence[int]) -> list[int]:
    """Return the checksum of each part of the weight of *layer*, cut between outputs."""
    sizes_of_inputs = ("input_size_per_partition", "input_size", "embedding_dim")
    width = next(getattr(layer, name) for name in sizes_of_inputs if hasattr(layer, name))
    totals = [0] * len(sizes)
    for first in range(0, width, COLUMNS):
        count = min(COLUMNS, width - first)
        rows = torch.zeros(count, width, dtype=weight.dtype, device=weight.device)
        rows[:, first : first + count].fill_diagonal_(1)
        outputs = layer.quant_method.apply(layer, rows, None)[:, : sum(sizes)]
        for i, part in enumerate(outputs.split(list(sizes), dim=-1)):
            totals[i] += checksum(part.t(), first_column=first)
    return [total % 2**64 for total in totals]


@torch.inference_mode()
def adapters_of(model: Any) -> Found:
    """Return type and checksum of the factors of the only adapter that the model has room for, by
    layer and ``lora_A`` or ``lora_B``.
    """
    found: Found = {}
    for name, layer in model.named_modules():
        if not isinstance(stacked := getattr(layer, "lora_a_stacked", None), tuple):
            continue
        if len(stacked[0].shape) != 4:
            continue  # of embeddings and the output layer, which are not adapted
        parts = parts_of(model, name, len(stacked))
        for part, a, b in zip(parts, stacked, layer.lora_b_stacked, strict=True):
            found[f"{part}.lora_A"] = _type(a), checksum(a[0, 0])
            found[f"{part}.lora_B"] = _type(b), checksum(b[0, 0].t())
    return {checkpoint_name(model, name): value for name, value in found.items()}


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
