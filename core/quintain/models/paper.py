"""A model on paper: its module without weights, by its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import UsageError
from .hf import config_folder
from .lora import with_adapters


def module_on_paper(name: str, lora: Mapping[str, Any] | None) -> Any:
    """Return the module of model *name* with its adapters, without weights; ``None`` if its
    configuration cannot be had.

    Raises:
        UsageError: the settings of the adapters are refused.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        if not (folder := config_folder(name)):
            return None
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(folder, local_files_only=True)
            )
            return with_adapters(module, lora) if lora is not None else module
    except UsageError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError):
        return None  # whoever loads it says what is wrong


def module_without_weights(path: str, dtype: torch.dtype, attn: str | None) -> Any:
    """Return the transformers module of *path* as it is loaded, with its parameters on the device
    ``meta``: for processes that read their parts of the weights themselves.

    Raises:
        UsageError: there is no such model, or it has tables beside its parameters that its class
            does not compute.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from .load import load_pretrained

    config = load_pretrained(AutoConfig, path)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    for part in module.modules():
        if names := [name for name, _ in part.named_buffers(recurse=False)]:
            for name in names:
                empty = torch.empty_like(getattr(part, name), device="cpu")
                setattr(
                    part, name, empty.fill_(float("nan")) if empty.is_floating_point() else empty
                )
            if not any(True for _ in part.parameters(recurse=False)):
                module._init_weights(part)
            made = [getattr(part, name) for name in names]
            if not all(t.is_floating_point() and t.isfinite().all() for t in made):
                raise UsageError(
                    f"model {path!r} cannot be loaded without its weights: "
                    f"{type(part).__name__} has tables of its own ({', '.join(names)})"
                )
    try:
        module.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:  # transformers makes one of the configuration, too
        module.generation_config = GenerationConfig.from_model_config(module.config)
    return module
