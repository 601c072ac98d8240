"""A model on paper: its module without weights, by its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import UsageError
from .hf import config_folder
from .load import family_of
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
        family = family_of(name)
        kind: Any = family.kind if family else AutoModelForCausalLM
        with torch.device("meta"):
            module = kind.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
            if lora is None:
                return module
            return with_adapters(module, family.adapters(module, lora) if family else lora)
    except UsageError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError):
        return None  # whoever loads it says what is wrong
