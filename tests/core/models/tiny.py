"""Tiny models with random weights, in the shapes the engine and the learner must handle."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

KINDS = ("llama", "qwen2", "qwen3", "gpt2")

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(
    kind: str = "qwen3",
    *,
    vocab: int = 260,
    hidden: int = 32,
    layers: int = 2,
    seed: int = 0,
    context: int = 512,
    spread: float = 0.15,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Any:
    """A causal language model in evaluation mode; *spread* is the standard deviation of its
    weights.

    Args:
        kind: one of `KINDS`.
        config: fields of the transformers config that differ from the tiny defaults.
    """
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "bos_token_id": None,
        "initializer_range": spread,
    }
    common |= {"eos_token_id": vocab - 2, "pad_token_id": vocab - 1}
    if kind == "gpt2":
        common |= {"n_embd": hidden, "n_layer": layers, "n_head": 4, "n_positions": context}
        common |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    else:
        common |= {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "intermediate_size": 3 * hidden,
        }
        common |= {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": context,
        }
        common |= {"head_dim": hidden // 4, "tie_word_embeddings": kind != "llama"}
    names = {
        "llama": "Llama",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "gpt2": "GPT2",
        "mistral": "Mistral",
    }
    name = names[kind]
    built = getattr(transformers, f"{name}Config")(**(common | config))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}{'LMHeadModel' if kind == 'gpt2' else 'ForCausalLM'}")(
        built
    )
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0, spread)
    return model.to(dtype).eval()


def with_exact_norms(model: Any) -> Any:
    """*model*, whose RMS norms compute in the type of their input; those of transformers round to
    float32.
    """
    for part in model.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = MethodType(_norm, part)
    return model


def _norm(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def byte_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """256 bytes and four special tokens (ids 256-259); ``<|im_end|>`` is 257 and ends a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|pad|>"
    )
    if template:
        fast.chat_template = template
    return fast


def save_tiny(
    folder: Path, kind: str = "qwen3", *, template: str | None = CHATML, **config: Any
) -> Path:
    """A model folder as from a hub: config, safetensors and tokenizer."""
    tiny_model(kind, **config).save_pretrained(folder)
    byte_tokenizer(template).save_pretrained(folder)
    return folder
