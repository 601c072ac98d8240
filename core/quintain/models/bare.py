"""The weights of a model without the model classes of transformers, whose import takes longer than
an answer: for commands that only decode what a run of Quintain has saved.

There is no forward: the layers are computed by `Decoder`, as in the run. A run compares them with
the module's own forward, which this module cannot.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

FAMILY = "qwen3"
"""``config.model_type`` of the models that `bare_model` reads, that of the default model."""
KEYS = {
    "attention_bias": False,
    "hidden_act": "silu",
    "rope_parameters.rope_type": "default",
    "sliding_window": None,
    "use_sliding_window": False,
}
"""Values of a configuration that the modules below take for granted."""


class _Config(SimpleNamespace):
    """The keys of ``config.json`` as attributes."""

    def get_text_config(self) -> _Config:
        return self


class _Norm(nn.Module):
    """The weight of a root-mean-square norm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.variance_epsilon = epsilon


class _Rotary(nn.Module):
    """Cosines and sines [1, T, E] of positions [1, T]."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.frequency_E = 1 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[..., None] * self.frequency_E.to(like.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


class _Block(nn.Module):
    """The modules of a layer, under the names that the weights have."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, wide, size = config.hidden_size, config.intermediate_size, config.head_dim
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for owner, name, take, give in (
            (self.self_attn, "q_proj", hidden, heads * size),
            (self.self_attn, "k_proj", hidden, key_heads * size),
            (self.self_attn, "v_proj", hidden, key_heads * size),
            (self.self_attn, "o_proj", heads * size, hidden),
            (self.mlp, "gate_proj", hidden, wide),
            (self.mlp, "up_proj", hidden, wide),
            (self.mlp, "down_proj", wide, hidden),
        ):
            setattr(owner, name, nn.Linear(take, give, bias=False))
        self.self_attn.q_norm = _Norm(size, config.rms_norm_eps)
        self.self_attn.k_norm = _Norm(size, config.rms_norm_eps)
        self.input_layernorm = _Norm(hidden, config.rms_norm_eps)
        self.post_attention_layernorm = _Norm(hidden, config.rms_norm_eps)


class BareModel(nn.Module):
    """The weights of a model of `FAMILY`, for `Decoder`; it has no forward.

    Attributes:
        config: the content of ``config.json``.
        generation_config: that of ``generation_config.json``, which names the ids that end a reply.
    """

    def __init__(self, config: _Config, generation_config: _Config) -> None:
        super().__init__()
        self.config, self.generation_config = config, generation_config
        self.model: Any = nn.Module()
        # random weights of an embedding would import the compiler of torch
        self.model.embed_tokens = nn.Embedding.from_pretrained(
            torch.empty(config.vocab_size, config.hidden_size)
        )
        self.model.layers = nn.ModuleList(_Block(config) for _ in range(config.num_hidden_layers))
        self.model.norm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.model.rotary_emb = _Rotary(config.head_dim, config.rope_parameters["rope_theta"])
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        """Return the module that turns ids into hidden states."""
        embedding: nn.Module = self.model.embed_tokens
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        """Return the module that turns hidden states into logits."""
        return self.lm_head


def is_plain_tokenizer(folder: Path) -> bool:
    """Return whether the tokenizer in *folder* is one of the library tokenizers and no more."""
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    name = config.get("tokenizer_class")
    return name in ("PreTrainedTokenizerFast", "TokenizersBackend")  # before and in transformers 5


def bare_model(folder: Path) -> BareModel | None:
    """Return the weights in *folder*, in float32; ``None`` if it is no folder with one file of
    float32 weights of `FAMILY`, its configuration has what the modules here lack, or its tokenizer has a
    class of its own.
    """
    file = folder / "model.safetensors"
    try:
        config, generation = (
            json.loads((folder / name).read_text(encoding="utf-8"))
            for name in ("config.json", "generation_config.json")
        )
        values = {
            **config,
            **{f"rope_parameters.{k}": v for k, v in config["rope_parameters"].items()},
        }
        plain = config["model_type"] == FAMILY and all(
            values.get(key) == value for key, value in KEYS.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # `load_model` says what is wrong
    if not plain or config.get("dtype") != "float32" or not file.is_file():
        return None
    if not is_plain_tokenizer(folder):
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(file)
    except SafetensorError:
        return None
    model = BareModel(_Config(**config), _Config(**generation))
    if config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if tensors.keys() != model.state_dict().keys():
        return None
    model.load_state_dict(tensors, assign=True)
    return model.eval()
