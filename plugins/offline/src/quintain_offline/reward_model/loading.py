"""Loads models of transformers with a head for scores, from a folder or the hub."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Any

import torch

from quintain.errors import UsageError
from quintain.models import (
    as_device,
    check_folder,
    check_whole,
    has_adapters_alone,
    load_model,
    load_pretrained,
)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def load_head(
    kind: Any, name: str, *, dtype: str, device: str, new: tuple[str, ...] = (), **options: Any
) -> tuple[Any, Any]:
    """Return the module of class *kind* in evaluation mode, and its tokenizer. Adapters are merged
    into their base.

    Args:
        new: prefixes of tensors that the checkpoint may lack, such as the head of a model that is
            to be trained.

    Raises:
        UsageError: there is no such model, it cannot be fetched, or it is damaged; weights are
            missing, which would be random; no such dtype or device.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    if not new:
        check_whole(name)
    elif has_adapters_alone(name):
        # transformers puts a head on whole models alone, and reads them from folders
        with TemporaryDirectory(prefix="quintain-merged-") as merged:
            model = load_model(name)
            module: Any = model.module
            module.save_pretrained(merged)
            model.tokenizer.hf.save_pretrained(merged)
            del model
            return load_head(kind, merged, dtype=dtype, device=device, new=new, **options)
    check_folder(name)
    path = os.path.expanduser(name)
    tokenizer = load_pretrained(AutoTokenizer, path)
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # missing tensors are reported below
    try:
        module, report = load_pretrained(
            kind, path, dtype=DTYPES[dtype], output_loading_info=True, **options
        )
    finally:
        transformers_logging.set_verbosity(level)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(new or ("\0",)))
    if missing:
        raise UsageError(
            f"model {name!r} has no weights for {missing[0]!r} ({len(missing)} tensors), which "
            "would be random: it is no reward model. Train one with `quintain reward train "
            f"PAIRS --model {name}`, or name a model with a head for scores"
        )
    without_dropout(module)
    return module.to(as_device(device)).eval(), tokenizer


def without_dropout(module: Any) -> None:
    """Switch dropout off, so that training and scoring compute the same function."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def context_of(module: Any, tokenizer: Any) -> int:
    """Return the longest sequence of *module*, in tokens."""
    config = module.config.get_text_config()
    for field in ("max_position_embeddings", "n_positions"):
        value = getattr(config, field, None)
        if isinstance(value, int) and value > 0:
            # Encoders such as RoBERTa begin to count positions behind the padding token.
            return min(value, int(tokenizer.model_max_length))
    return int(tokenizer.model_max_length)
