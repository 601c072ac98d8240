"""The module and the weights under a wrapper of peft, which `quintain.models.lora` attaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def has_adapters(module: nn.Module) -> bool:
    """Return whether peft wraps *module*."""
    return hasattr(module, "get_base_model")


def base_of(module: Any) -> Any:
    """Return the transformers module of *module*, which peft may wrap."""
    return module.get_base_model() if has_adapters(module) else module


def body_of(module: Any) -> Any:
    """Return the module without its output layer: ids to hidden states."""
    base = base_of(module)
    # `Llama4ForCausalLM` has its body under another name than its `base_model_prefix`, and returns
    # itself.
    return base.model if base.base_model is base else base.base_model


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each parameter and each persistent buffer, such as the routing bias
    of experts.
    """
    yield from module.named_parameters()
    saved = module.state_dict().keys()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


def merged_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name, as in a Hugging Face checkpoint, and tensor of each parameter and persistent
    buffer, the adapters' change added.
    """
    base = base_of(module)
    adapted = {
        name: part for name, part in base.named_modules() if hasattr(part, "get_delta_weight")
    }
    for name, parameter in named_tensors(base):
        owner, _, leaf = name.rpartition(".")
        if owner in adapted or any(owner.startswith(f"{a}.lora_") for a in adapted):
            continue
        layer, merged = owner, parameter
        # two for experts, whose maps are two parameters of one module
        while layer.endswith(".base_layer"):
            layer = layer.removesuffix(".base_layer")
            if layer in adapted and leaf == getattr(adapted[layer], "parameter_name", "weight"):
                merged = merged + sum(
                    adapted[layer].get_delta_weight(a) for a in adapted[layer].active_adapters
                )
        yield f"{layer}.{leaf}" if layer else leaf, merged
