"""GPUs by the data sheets of their vendors, and models by their published configurations."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from quintain.errors import UsageError, did_you_mean
from quintain.models import cache_shape, module_on_paper
from quintain.recipe import RunPlan


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, of ``hardware.toml``.

    Attributes:
        memory: bytes.
        bandwidth: bytes a second of its memory.
        flops: of bfloat16 a second, without sparsity.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float


@cache
def gpus() -> dict[str, Gpu]:
    """Return all GPUs by name."""
    table = tomllib.loads((Path(__file__).parent / "hardware.toml").read_text(encoding="utf-8"))
    return {
        name: Gpu(
            name=name,
            memory=1e9 * row["memory"],
            bandwidth=1e9 * row["bandwidth"],
            flops=1e12 * row["bf16"],
        )
        for name, row in table.items()
    }


def gpu_named(name: str) -> Gpu:
    """Return a GPU.

    Raises:
        UsageError: there is none of that name.
    """
    try:
        return gpus()[name.lower()]
    except KeyError:
        known = ", ".join(gpus())
        near = did_you_mean(name.lower(), [*gpus()])
        raise UsageError(f"no GPU {name!r}{near}; known are {known}") from None


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a model that its speed depends on.

    Attributes:
        parameters: all of them.
        active: those that multiply a token: not the experts that it does not use, and not input
            embeddings of their own, which are looked up.
        key_heads: heads of keys and values.
    """

    name: str
    parameters: float
    active: float
    layers: int
    heads: int
    key_heads: int
    head: int

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of a token, in half precision."""
        return 2 * 2 * self.layers * self.key_heads * self.head

    @property
    def pair_flops(self) -> int:
        """Operations of a forward pass for a pair of tokens of which one attends to the other."""
        return 4 * self.layers * self.heads * self.head


CONFIGS: dict[str, dict[str, Any]] = {
    # config.json of Qwen/Qwen3-0.6B, -1.7B, -4B, -8B, -14B and -32B
    "0.6b": {"architecture": "qwen3", "layers": 28, "hidden": 1024, "inner": 3072, "heads": 16,
             "key_heads": 8, "head": 128, "words": 151_936, "tied": True},
    "1.7b": {"architecture": "qwen3", "layers": 28, "hidden": 2048, "inner": 6144, "heads": 16,
             "key_heads": 8, "head": 128, "words": 151_936, "tied": True},
    "4b": {"architecture": "qwen3", "layers": 36, "hidden": 2560, "inner": 9728, "heads": 32,
           "key_heads": 8, "head": 128, "words": 151_936, "tied": True},
    "8b": {"architecture": "qwen3", "layers": 36, "hidden": 4096, "inner": 12_288, "heads": 32,
           "key_heads": 8, "head": 128, "words": 151_936, "tied": False},
    "14b": {"architecture": "qwen3", "layers": 40, "hidden": 5120, "inner": 17_408, "heads": 40,
            "key_heads": 8, "head": 128, "words": 151_936, "tied": False},
    "32b": {"architecture": "qwen3", "layers": 64, "hidden": 5120, "inner": 25_600, "heads": 64,
            "key_heads": 8, "head": 128, "words": 151_936, "tied": False},
    # config.json of meta-llama/Llama-3.1-70B
    "70b": {"architecture": "llama", "layers": 80, "hidden": 8192, "inner": 28_672, "heads": 64,
            "key_heads": 8, "head": 128, "words": 128_256, "tied": False},
}  # fmt: skip
"""Published configurations by size."""


def module_of(size: str) -> Any:
    """Return the module of a size of `CONFIGS`, without weights.

    Raises:
        UsageError: there is no such size.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    try:
        sizes = CONFIGS[size.lower()]
    except KeyError:
        raise UsageError(f"no model of size {size!r}; known are {', '.join(CONFIGS)}") from None
    kind: Any = {"qwen3": Qwen3Config, "llama": LlamaConfig}[sizes["architecture"]]
    config = kind(
        num_hidden_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["inner"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["key_heads"],
        head_dim=sizes["head"],
        vocab_size=sizes["words"],
        tie_word_embeddings=sizes["tied"],
        max_position_embeddings=131_072,
    )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def module_for(plan: RunPlan, size: str) -> Any:
    """Return the module of a *size* of `CONFIGS`, or without one that of the recipe's model;
    ``None`` if this has no configuration here. It has neither weights nor adapters.

    Raises:
        UsageError: there is no such size.
    """
    return module_of(size) if size else module_on_paper(plan.model.name, None)


def shape_of(module: Any, name: str) -> ModelShape:
    """Return the shape of *module*, which needs no weights."""
    config = module.config.get_text_config()
    parameters = sum(parameter.numel() for parameter in module.parameters())
    layers, key_heads, head = cache_shape(config)
    return ModelShape(
        name=name,
        parameters=parameters,
        active=parameters - idle_experts(module, config) - looked_up(module),
        layers=layers,
        heads=config.num_attention_heads,
        key_heads=key_heads,
        head=head,
    )


def looked_up(module: Any) -> float:
    """Return the parameters of input embeddings that are no output layer as well."""
    embeddings, head = module.get_input_embeddings(), module.get_output_embeddings()
    if head is None or head.weight is embeddings.weight:
        return 0.0
    return float(embeddings.weight.numel())


def idle_experts(module: Any, config: Any) -> float:
    """Return the parameters of experts that a token does not use; 0 without experts."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    used = getattr(config, "num_experts_per_tok", None)
    if not experts or not used:
        return 0.0
    of_experts: int = sum(p.numel() for name, p in module.named_parameters() if ".experts." in name)
    idle: float = 1 - used / experts
    return of_experts * idle
