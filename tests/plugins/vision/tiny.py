"""Vision-language models of transformers with random weights, of a few thousand parameters each, as
folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TEMPLATES = {
    # images first, as in the templates of LLaVA 1.5
    "llava": "{% for m in messages %}{{ m.role | upper }}: "
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content if c.type == 'image' %}<image>\n{% endfor %}"
    "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}{% endif %}"
    "{% if m.role == 'assistant' %}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}",
    # each part in its place, and no text that is not in a list, as in those of SmolVLM
    "smolvlm": "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
    "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% elif c.type == 'image' %}<image>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
}
ROWS = [f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)]
SPECIAL = ["<image>", "<fake_token_around_image>", "<global-img>", *ROWS]


def tokenizer(family: str) -> Any:
    """Return a byte-level tokenizer with the tokens and the template of *family*."""
    from quintain_starter.architecture import build_tokenizer

    built = build_tokenizer()
    built.add_special_tokens({"additional_special_tokens": SPECIAL})
    built.chat_template = TEMPLATES["llava" if family == "llava" else "smolvlm"]
    return built


def save(folder: Path, family: str, *, hidden: int = 32, layers: int = 2, seed: int = 0) -> Path:
    """Write a model of *family* (``llava``, ``idefics3``, ``smolvlm``) with its processor."""
    import transformers as t

    words = tokenizer(family)
    ends = words.convert_tokens_to_ids(["<|im_end|>"])
    text: dict[str, Any] = {
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
    tower: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "initializer_range": 0.2,
    }
    image = words.convert_tokens_to_ids("<image>")
    text_config = t.LlamaConfig(**text)
    torch.manual_seed(seed)
    if family == "llava":
        config = t.LlavaConfig(
            vision_config=t.CLIPVisionConfig(**tower, projection_dim=16),
            text_config=text_config,
            image_token_id=image,
            vision_feature_layer=-2,
        )
        model: Any = t.LlavaForConditionalGeneration(config)
        pil = t.CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        )
        processor = t.LlavaProcessor(
            pil, words, patch_size=8, vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )  # fmt: skip
        processor.chat_template = words.chat_template
        processor.save_pretrained(folder)
    else:
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
        model = kind(config)
        pil_kind = t.SmolVLMImageProcessorPil if smol else t.Idefics3ImageProcessorPil
        pil = pil_kind(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
        pil.save_pretrained(folder)
        words.save_pretrained(folder)
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    return folder
