"""Low-rank adapters (Hu et al. 2021, 2106.09685): attached by peft, and merged into the weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..errors import UsageError

EXACT = """r lora_alpha rank_pattern alpha_pattern use_rslora target_modules exclude_modules target_parameters
    layers_to_transform layers_pattern fan_in_fan_out task_type""".split()
"""Fields of `peft.LoraConfig` with which the policy is the base model, untouched, plus products
that are merged.
"""


def with_adapters(module: Any, settings: Mapping[str, Any]) -> nn.Module:
    """Return *module* with adapters, which alone train; by default on all linear maps but the
    output layer and those that bypass adapters.

    Args:
        settings: fields of `peft.LoraConfig`.

    Raises:
        UsageError: peft is not installed, or a setting is unknown or keeps the adapters from being
            merged.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as missing:
        raise UsageError("lora needs peft: pip install 'quintain[lora]'") from missing
    # The router of Llama 4 is a linear map that returns a pair. Fused kernels of Mamba read the weight
    # of `out_proj` past its adapter, and peft refuses one there.
    parts = list(module.named_modules())
    others = [name for name, part in parts if type(part).__name__ == "Llama4Router"]
    others += [f"{n}.out_proj" for n, p in parts if hasattr(p, "conv1d") and hasattr(p, "D")]
    fields = {
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
        "exclude_modules": others or None,
        **settings,
    }
    for name, value in fields.items():
        plain = (
            not value
            or value in ("none", "gaussian", "orthogonal")
            or (name, value) == ("init_lora_weights", True)
        )
        if name in {*LoraConfig.__dataclass_fields__} - {*EXACT} and not plain:
            raise UsageError(
                f"lora.{name} = {value!r} is not supported: sampler or ref would be wrong; leave "
                f"it out"
            )
    with without_warnings():
        try:
            adapted = get_peft_model(module, LoraConfig(**fields))
        except (TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0].partition(". Please")[0]
            fix = 'name the modules to adapt, such as target_modules = ["q_proj", "v_proj"]'
            raise UsageError(f"lora {dict(settings)!r}: {reason}; {fix}") from error
    inputs, outputs = adapted.get_input_embeddings(), adapted.get_output_embeddings()
    if hasattr(inputs, "base_layer") and inputs.weight is outputs.weight:
        raise UsageError(
            "an adapter on embeddings that are the output layer, too, is not supported; exclude "
            "them"
        )
    return adapted


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leave out the warnings of peft that mean nothing here."""
    with warnings.catch_warnings():  # it still asks transformers 5 by an older name
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
        )
        # Its own pattern for the experts of a mixture is applied, but not counted as a match.
        warnings.filterwarnings(
            "ignore", message=".*_pattern keys did not match", category=RuntimeWarning
        )
        # It finds the transposed weights of GPT-2 itself.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set", category=UserWarning)
        yield


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
