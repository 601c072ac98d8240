"""A tiny Llama as a GGUF file, and what its weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers

from ...core.models.tiny import tiny_model

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def words() -> list[str]:
    """The vocabulary: three special tokens, the bytes, and two blanks in a row."""
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ"]


def write_gguf(file: Path, *, quantised: bool = False, pre: str = "smollm") -> Any:
    """Write *file* and return the module of transformers with the weights that it holds."""
    import gguf

    module = tiny_model("llama", vocab=len(words()), hidden=64, layers=2)
    config = module.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(words()))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(words()) - len(SPECIAL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)
    kind = gguf.GGMLQuantizationType.Q4_1
    state = module.state_dict()
    for name, tensor in state.items():
        values = tensor.numpy()
        if quantised and values.ndim == 2:
            blocks = gguf.quants.quantize(values, kind)
            state[name] = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
        heads = {
            "q_proj": config.num_attention_heads,
            "k_proj": config.num_key_value_heads,
        }.get(name.split(".")[-2])
        if heads is not None:
            values = interleaved(values, heads)
        if quantised and values.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    module.load_state_dict(state)
    return module


def gguf_name(name: str) -> str:
    """The name in GGUF of a tensor of transformers."""
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


def interleaved(values: Any, heads: int) -> Any:
    """Rows of a projection in the order of GGUF, in which the halves that a rotation joins alternate."""
    shape = values.shape
    halves = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return halves.swapaxes(1, 2).reshape(shape)
