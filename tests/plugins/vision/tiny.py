"""Vision-language models of transformers with random weights, of a few thousand parameters each, as
folders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

# images first, as in the templates of LLaVA 1.5
LLAVA = (
    "{% for m in messages %}{{ m.role | upper }}: "
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content if c.type == 'image' %}<image>\n{% endfor %}"
    "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}{% endif %}"
    "{% if m.role == 'assistant' %}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
# each part in its place, and no text that is not in a list, as in those of SmolVLM
SMOLVLM = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
    "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% elif c.type == 'image' %}<image>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
# text with or without a list, as in those of Qwen-VL
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = QWEN.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")
TEMPLATES = {
    "llava": LLAVA,
    "llava_next": LLAVA,
    "idefics3": SMOLVLM,
    "smolvlm": SMOLVLM,
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": QWEN,
    "gemma3": GEMMA,
    "pixtral": QWEN.replace("<|vision_start|><|image_pad|><|vision_end|>", "[IMG]"),
}
ROWS = [f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)]
SPECIAL = {
    "qwen": ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"],
    "gemma": ["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
    "pixtral": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    "other": ["<image>", "<fake_token_around_image>", "<global-img>", *ROWS],
}


def tokenizer(family: str) -> Any:
    """Return a byte-level tokenizer with the tokens and the template of *family*."""
    from quintain_starter.architecture import build_tokenizer

    built = build_tokenizer()
    kind = next((kind for kind in SPECIAL if family.startswith(kind)), "other")
    built.add_special_tokens({"additional_special_tokens": SPECIAL[kind]})
    built.chat_template = TEMPLATES[family]
    return built


def save(
    folder: Path,
    family: str,
    *,
    hidden: int = 32,
    layers: int = 2,
    seed: int = 0,
    text: dict[str, Any] | None = None,
) -> Path:
    """Write a model of *family*, a key of `TEMPLATES`, with its processor.

    Args:
        text: further fields of the configuration of the language model.
    """
    words = tokenizer(family)
    ends = words.convert_tokens_to_ids(["<|im_end|>"])
    fields: dict[str, Any] = {
        "vocab_size": -(-len(words) // 8) * 8,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "eos_token_id": ends[0],
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    kinds = {"gemma3": _gemma, "pixtral": _pixtral}
    build = _qwen if family.startswith("qwen") else kinds.get(family, _other)
    model, images = build(family, words, fields | (text or {}))
    images.save_pretrained(folder)
    words.save_pretrained(folder)
    if family.startswith("llava"):
        import transformers as t

        kind = t.LlavaProcessor if family == "llava" else t.LlavaNextProcessor
        processor = kind(
            images, words, patch_size=8, vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )  # fmt: skip
        processor.chat_template = words.chat_template
        processor.save_pretrained(folder)
    if family == "pixtral":
        saved = {"patch_size": 8, "processor_class": "PixtralProcessor"}
        (folder / "processor_config.json").write_text(json.dumps(saved), encoding="utf-8")
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    return folder


TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.2,
}


def _other(family: str, words: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as t

    text_config = t.LlamaConfig(**text)
    image = words.convert_tokens_to_ids("<image>")
    tower = TOWER
    config: Any
    if family.startswith("llava"):
        after = family == "llava_next"
        more = {"image_grid_pinpoints": [[32, 64], [64, 32]]} if after else {}
        config = (t.LlavaNextConfig if after else t.LlavaConfig)(
            vision_config=t.CLIPVisionConfig(**tower, projection_dim=16),
            text_config=text_config,
            image_token_id=image,
            vision_feature_layer=-2,
            **more,
        )
        sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
        if after:
            model: Any = t.LlavaNextForConditionalGeneration(config)
            return model, t.LlavaNextImageProcessorPil(**sizes, **more)
        return t.LlavaForConditionalGeneration(config), t.CLIPImageProcessorPil(**sizes)
    smol = family == "smolvlm"
    vision = (t.SmolVLMVisionConfig if smol else t.Idefics3VisionConfig)(**tower)
    config = (t.SmolVLMConfig if smol else t.Idefics3Config)(
        vision_config=vision,
        text_config=text_config,
        image_token_id=image,
        scale_factor=2,
        pad_token_id=0,
    )
    kind = t.SmolVLMForConditionalGeneration if smol else t.Idefics3ForConditionalGeneration
    pil_kind = t.SmolVLMImageProcessorPil if smol else t.Idefics3ImageProcessorPil
    images = pil_kind(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return kind(config), images


def _qwen(family: str, words: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as t

    head = text["hidden_size"] // text["num_attention_heads"]
    # frequencies of each axis, half of them for time
    text["rope_parameters"] = {
        "rope_type": "default", "rope_theta": 1e4,
        "mrope_section": [head // 4, head // 8, head // 8],
    }  # fmt: skip
    tower: dict[str, Any] = {
        "depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": 0.2,
    }  # fmt: skip
    if family == "qwen2_vl":
        kinds: Any = (t.Qwen2VLConfig, t.Qwen2VLForConditionalGeneration)
        tower |= {"embed_dim": 16, "hidden_size": text["hidden_size"]}
    else:
        tower |= {
            "hidden_size": 16, "intermediate_size": 32, "out_hidden_size": text["hidden_size"],
        }  # fmt: skip
    if family == "qwen2_5_vl":
        kinds = (t.Qwen2_5_VLConfig, t.Qwen2_5_VLForConditionalGeneration)
        tower |= {"window_size": 16, "fullatt_block_indexes": [1]}
    if family == "qwen3_vl":
        kinds = (t.Qwen3VLConfig, t.Qwen3VLForConditionalGeneration)
        text |= {"head_dim": head}
        tower |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    ids = words.convert_tokens_to_ids(SPECIAL["qwen"])
    config = kinds[0](
        vision_config=tower, text_config=text, vision_start_token_id=ids[0], image_token_id=ids[1],
        vision_end_token_id=ids[2], video_token_id=ids[3],
    )  # fmt: skip
    size = {"shortest_edge": 8 * 8, "longest_edge": 64 * 64}
    return kinds[1](config), t.Qwen2VLImageProcessorPil(size=size, patch_size=4)


def _gemma(family: str, words: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as t

    kinds = ["sliding_attention", "full_attention"] * text["num_hidden_layers"]
    text |= {
        "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 12,
        "layer_types": kinds[: text["num_hidden_layers"]],
    }  # fmt: skip
    config = t.Gemma3Config(
        vision_config=t.SiglipVisionConfig(**TOWER),
        text_config=t.Gemma3TextConfig(**text),
        mm_tokens_per_image=4,
        image_token_index=words.convert_tokens_to_ids("<image_soft_token>"),
    )
    images = t.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    model = t.Gemma3ForConditionalGeneration(config)
    # zeros in a new model, which would see nothing
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    return model, images


def _pixtral(family: str, words: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    import transformers as t

    config = t.LlavaConfig(
        vision_config=t.PixtralVisionConfig(**TOWER | {"image_size": 64}),
        text_config=t.MistralConfig(**text, sliding_window=None),
        image_token_id=words.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    size = {"height": 8, "width": 8}
    images = t.PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size=size)
    return t.LlavaForConditionalGeneration(config), images
