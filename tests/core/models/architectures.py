"""Tiny models with random weights of many architectures: the table behind the engine's tests and
`docs/models.md`.

Each has the shape of a published family, shrunk by its config alone: two to four layers, 32 wide,
64 words. Windows are 6 tokens, so that any sequence of a test exceeds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
import transformers

VOCABULARY = 64
CONTEXT = 128
WINDOW = 6
SPREAD = 0.15
"""Standard deviation of the weights: logits differ by nats, so a wrong cache shows."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "initializer_range": SPREAD,
    "bos_token_id": None,
    "eos_token_id": VOCABULARY - 2,
    "pad_token_id": VOCABULARY - 1,
}
_KV = "num_key_value_heads"
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_SLIDING = {"sliding_window": WINDOW}
_MIXED = {**_SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}


def _shape(
    family: str, *without: str, head: str = "ForCausalLM", **fields: Any
) -> tuple[str, str, dict[str, Any]]:
    """A family of transformers, the class name's ending, and the fields of its config."""
    common = {name: value for name, value in _COMMON.items() if name not in without}
    return family, head, common | fields


def _rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


_SHAPES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "llama": _shape("Llama"),
    "llama-linear-rope": _shape("Llama", **_rope("linear", factor=2.0)),
    "llama-3-rope": _shape(
        "Llama",
        **_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=CONTEXT // 8,
        ),
    ),
    "llama4": _shape("Llama4", intermediate_size_mlp=48, attention_chunk_size=WINDOW, **_EXPERTS),
    "qwen2": _shape("Qwen2", tie_word_embeddings=True),
    "qwen2-window": _shape("Qwen2", use_sliding_window=True, max_window_layers=1, **_SLIDING),
    "qwen3": _shape("Qwen3", tie_word_embeddings=True),
    "qwen3-yarn-rope": _shape(
        "Qwen3", **_rope("yarn", factor=4.0, original_max_position_embeddings=CONTEXT // 4)
    ),
    "qwen2-moe": _shape("Qwen2Moe", shared_expert_intermediate_size=16, **_EXPERTS),
    "qwen3-moe": _shape("Qwen3Moe", **_EXPERTS),
    "qwen3-next": _shape(
        "Qwen3Next",
        **_EXPERTS,
        **_LINEAR,
        shared_expert_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "qwen3.5": _shape(
        "Qwen3_5",
        **_LINEAR,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "mistral": _shape("Mistral", sliding_window=None),
    "mistral-window": _shape("Mistral", **_SLIDING),
    "ministral": _shape("Ministral", **_MIXED),
    "mixtral": _shape("Mixtral", sliding_window=None, **_EXPERTS),
    "gemma": _shape("Gemma"),
    "gemma2": _shape("Gemma2", query_pre_attn_scalar=8, **_MIXED),
    "gemma3": _shape("Gemma3", query_pre_attn_scalar=8, **_MIXED),
    "gemma3-cap": _shape("Gemma3", query_pre_attn_scalar=8, final_logit_softcapping=30.0, **_MIXED),
    "gemma4": _shape(
        "Gemma4", vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=8, **_MIXED
    ),
    "phi": _shape("Phi"),
    "phi3": _shape("Phi3", sliding_window=None),
    "phi3-window": _shape("Phi3", **_SLIDING),
    "phi3-longrope": _shape(
        "Phi3",
        sliding_window=None,
        original_max_position_embeddings=CONTEXT // 4,
        **_rope("longrope", short_factor=[1.0] * 4, long_factor=[4.0] * 4),
    ),
    "gpt2": _shape(
        "GPT2", _KV, head="LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT
    ),
    "gpt-neox": _shape("GPTNeoX", _KV),
    "gpt-oss": _shape("GptOss", **_EXPERTS, **_MIXED, **_rope("default")),
    "opt": _shape("OPT", _KV, word_embed_proj_dim=32, ffn_dim=48),
    "falcon": _shape("Falcon", _KV, "head_dim"),
    "falcon-alibi": _shape("Falcon", _KV, "head_dim", alibi=True),
    "falcon-h1": _shape(
        "FalconH1",
        mamba_d_ssm=64,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=8,
    ),
    "olmo": _shape("Olmo"),
    "olmo2": _shape("Olmo2"),
    "olmo3": _shape("Olmo3", **_MIXED),
    "olmoe": _shape("Olmoe", **_EXPERTS),
    "granite": _shape("Granite"),
    "granite-scaled": _shape("Granite", logits_scaling=4.0),
    "granite-moe": _shape("GraniteMoe", logits_scaling=4.0, **_EXPERTS),
    "granite-hybrid": _shape(
        "GraniteMoeHybrid",
        **_EXPERTS,
        shared_intermediate_size=16,
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=8,
    ),
    "smollm3": _shape("SmolLM3", no_rope_layer_interval=2),
    "smollm3-window": _shape(
        "SmolLM3", use_sliding_window=True, **_SLIDING, no_rope_layer_interval=2
    ),
    "starcoder2": _shape("Starcoder2", sliding_window=None),
    "starcoder2-window": _shape("Starcoder2", **_SLIDING),
    "stablelm": _shape("StableLm"),
    "glm4": _shape("Glm4"),
    "glm4-moe": _shape(
        "Glm4Moe", **_EXPERTS, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1
    ),
    "nemotron": _shape("Nemotron"),
    "nemotron-h": _shape(
        "NemotronH",
        "num_hidden_layers",
        layers_block_type=["mamba", "attention", "mlp"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
    ),
    "ernie4.5": _shape("Ernie4_5"),
    "hunyuan": _shape("HunYuanDenseV1"),
    "helium": _shape("Helium"),
    "seed-oss": _shape("SeedOss"),
    "arcee": _shape("Arcee"),
    "cohere": _shape("Cohere"),
    "cohere2": _shape("Cohere2", logit_scale=1.0, **_MIXED),
    "exaone4": _shape("Exaone4", **_MIXED),
    "lfm2": _shape("Lfm2", layer_types=["conv", "full_attention"]),
    "jamba": _shape(
        "Jamba",
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "minimax": _shape("MiniMax", **_EXPERTS, **_LINEAR, block_size=8),
    "deepseek-v3": _shape(
        "DeepseekV3",
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "bart": _shape(
        "Bart",
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        encoder_layers=1,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        is_decoder=True,
        is_encoder_decoder=False,
    ),
    "bloom": _shape("Bloom", _KV, n_layer=2, n_head=4),
    "gpt-neo": _shape(
        "GPTNeo",
        _KV,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
    ),
    "gptj": _shape("GPTJ", _KV, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, rotary_dim=4),
    "codegen": _shape(
        "CodeGen", _KV, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, rotary_dim=4
    ),
    "mpt": _shape("Mpt", _KV, d_model=32, n_heads=4, n_layers=2, max_seq_len=CONTEXT),
    "mamba": _shape("Mamba", state_size=8, time_step_rank=4),
    "mamba2": _shape("Mamba2", num_heads=8, head_dim=8, state_size=8, n_groups=1, chunk_size=8),
    "recurrent-gemma": _shape(
        "RecurrentGemma",
        "num_hidden_layers",
        num_hidden_layers=3,
        lru_width=32,
        attention_window_size=WINDOW,
        conv1d_width=4,
    ),
    "rwkv": _shape("Rwkv", attention_hidden_size=32, context_length=CONTEXT),
    "bert": _shape("Bert", head="LMHeadModel", is_decoder=True),
    "electra": _shape("Electra", embedding_size=16, is_decoder=True),
}


ARCHITECTURES = tuple(_SHAPES)
"""Names of the table."""
KINDS = """
llama llama4 qwen3 qwen3-next qwen2-moe mistral-window gemma3-cap gemma4 phi3-longrope gpt2 gpt-oss
falcon-alibi falcon-h1 granite-scaled glm4-moe lfm2 jamba deepseek-v3 bloom mpt mamba2 bert
""".split()
"""One of each kind of attention, position, mixture of experts and state."""


def kinds_first(names: Iterable[str]) -> list[Any]:
    """*names* as parameters of a test, of which those that repeat a kind are slow."""
    return [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in names]


def architecture(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    spread: float = SPREAD,
    **changed: Any,
) -> Any:
    """The model of the table, in evaluation mode; *spread* is the standard deviation of its
    weights.

    *changed* are fields of its config.

    Attention is sdpa where the family has it, else eager. Biases are random, too, also those that
    are buffers: a copy that leaves one out is off by nats.
    """
    family, head, fields = _SHAPES[name]
    kind = getattr(transformers, f"{family}TextConfig", None) or getattr(
        transformers, f"{family}Config"
    )
    model_class = getattr(transformers, family + head)
    attention = "sdpa" if model_class._supports_sdpa else "eager"
    torch.manual_seed(seed)
    model = model_class._from_config(
        kind(**(fields | {"initializer_range": spread} | changed)), attn_implementation=attention
    )
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0, spread)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("correction_bias"):  # of a router of experts
                buffer.normal_(0, 1)
    model.to(dtype)
    for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if any(part in tensor_name for part in model._keep_in_fp32_modules_strict or ()):
            tensor.data = tensor.data.float()  # as `from_pretrained` does
    return model.eval()
