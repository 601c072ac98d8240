"""Low-rank adapters: whether a module has them, and its weights with them merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def has_adapters(module: nn.Module) -> bool:
    """Whether peft wraps *module*."""
    return hasattr(module, "get_base_model")


def merged_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name, as in a Hugging Face checkpoint, and tensor of each parameter, with the adapters' change added in."""
    base: Any = module.get_base_model() if has_adapters(module) else module  # type: ignore[operator]
    adapted = {name: part for name, part in base.named_modules() if hasattr(part, "get_delta_weight")}
    for name, parameter in base.named_parameters():
        owner, _, leaf = name.rpartition(".")
        if owner in adapted or any(owner.startswith(f"{a}.lora_") for a in adapted):
            continue
        layer = owner.removesuffix(".base_layer")
        if layer in adapted and leaf == "weight":
            change = sum(adapted[layer].get_delta_weight(a) for a in adapted[layer].active_adapters)
            yield f"{layer}.weight", parameter + change
        else:
            yield f"{layer}.{leaf}" if layer else leaf, parameter
