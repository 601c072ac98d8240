"""Tensors that are handed to an engine in this process, by key: nothing is copied on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

handed: dict[str, Mapping[str, Any]] = {}

SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_local_experts",
    "moe_intermediate_size",
    "tie_word_embeddings",
)
"""Fields of a config of transformers on which names and shapes of weights depend."""


def shape_of(config: Any) -> dict[str, Any]:
    """Return the fields of `SHAPE` that *config*, or the one of its text model, has."""
    text = config.get_text_config()
    return {name: value for name in SHAPE if (value := getattr(text, name, None)) is not None}
