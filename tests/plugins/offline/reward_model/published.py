"""A folder with the files and tensors of the published ImageReward, small and of random weights, and
its score written out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a red blue circle of two squares , cat ##s [DEC] [ENC]".split()
)
WIDTH, DEPTH, SIDE, PATCH = 128, 2, 48, 16
TEXT, LAYERS, HEADS = 24, 2, 3
HEAD = (20, 12, 8, 4, 1)


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """The state of the published class, by its names."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}

    def add(name: str, *shape: int, scale: float = 0.3, around: float = 0.0) -> None:
        made[name] = around + scale * torch.randn(*shape, generator=generator)

    def linear(name: str, rows: int, columns: int) -> None:
        add(f"{name}.weight", rows, columns, scale=1.2 / math.sqrt(columns))
        add(f"{name}.bias", rows)

    def norm(name: str, width: int) -> None:
        add(f"{name}.weight", width, around=1.0)
        add(f"{name}.bias", width)

    eye = "blip.visual_encoder"
    add(f"{eye}.cls_token", 1, 1, WIDTH)
    add(f"{eye}.pos_embed", 1, (SIDE // PATCH) ** 2 + 1, WIDTH)
    add(f"{eye}.patch_embed.proj.weight", WIDTH, 3, PATCH, PATCH, scale=0.05)
    add(f"{eye}.patch_embed.proj.bias", WIDTH)
    for index in range(DEPTH):
        block = f"{eye}.blocks.{index}"
        norm(f"{block}.norm1", WIDTH)
        linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
        linear(f"{block}.attn.proj", WIDTH, WIDTH)
        norm(f"{block}.norm2", WIDTH)
        linear(f"{block}.mlp.fc1", 4 * WIDTH, WIDTH)
        linear(f"{block}.mlp.fc2", WIDTH, 4 * WIDTH)
    norm(f"{eye}.norm", WIDTH)
    text = "blip.text_encoder"
    made[f"{text}.embeddings.position_ids"] = torch.arange(40)[None]
    add(f"{text}.embeddings.word_embeddings.weight", len(WORDS), TEXT)
    add(f"{text}.embeddings.position_embeddings.weight", 40, TEXT)
    norm(f"{text}.embeddings.LayerNorm", TEXT)
    for index in range(LAYERS):
        layer = f"{text}.encoder.layer.{index}"
        for part, width in (("attention", TEXT), ("crossattention", WIDTH)):
            linear(f"{layer}.{part}.self.query", TEXT, TEXT)
            linear(f"{layer}.{part}.self.key", TEXT, width)
            linear(f"{layer}.{part}.self.value", TEXT, width)
            linear(f"{layer}.{part}.output.dense", TEXT, TEXT)
            norm(f"{layer}.{part}.output.LayerNorm", TEXT)
        linear(f"{layer}.intermediate.dense", 2 * TEXT, TEXT)
        linear(f"{layer}.output.dense", TEXT, 2 * TEXT)
        norm(f"{layer}.output.LayerNorm", TEXT)
    linear("blip.vision_proj", 8, WIDTH)
    linear("blip.text_proj", 8, TEXT)
    for place, rows, columns in zip((0, 2, 4, 6, 7), HEAD, (TEXT, *HEAD), strict=False):
        linear(f"mlp.layers.{place}", rows, columns)
    return made


MED = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": TEXT,
    "initializer_range": 0.02,
    "intermediate_size": 2 * TEXT,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "model_type": "bert",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
    "encoder_width": 768,
    "add_cross_attention": True,
}
"""The published file has these keys; the width there is that of another vision transformer."""


def published(folder: Path, made: Mapping[str, Tensor] | None = None) -> Path:
    """Write the folder, with the vocabulary that the package reads from the hub."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(dict(tensors() if made is None else made), folder / "ImageReward.pt")
    (folder / "med_config.json").write_text(json.dumps(MED))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return folder


def expected(made: Mapping[str, Tensor], ids: list[int], image: Image.Image) -> float:
    """The score of a prompt of tokens *ids* and a square picture of the model's side, in float64."""
    w = {name: value.double() for name, value in made.items()}

    def dense(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normed(name: str, x: Tensor, eps: float) -> Tensor:
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        size = q.shape[-1] // heads
        outs = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            weights = (q[:, part] @ k[:, part].T / math.sqrt(size)).softmax(-1)
            outs.append(weights @ v[:, part])
        return torch.cat(outs, -1)

    values: Any = image.tobytes()
    picture = torch.tensor(list(values), dtype=torch.float64).view(SIDE, SIDE, 3).permute(2, 0, 1)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073], dtype=torch.float64)[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711], dtype=torch.float64)[:, None, None]
    picture = (picture / 255 - mean) / std
    eye = "blip.visual_encoder"
    kernel = w[f"{eye}.patch_embed.proj.weight"].flatten(1)
    rows = [w[f"{eye}.cls_token"][0, 0]]
    for y in range(0, SIDE, PATCH):
        for x in range(0, SIDE, PATCH):
            patch = picture[:, y : y + PATCH, x : x + PATCH].flatten()
            rows.append(kernel @ patch + w[f"{eye}.patch_embed.proj.bias"])
    seen = torch.stack(rows) + w[f"{eye}.pos_embed"][0]
    for index in range(DEPTH):
        block = f"{eye}.blocks.{index}"
        q, k, v = dense(f"{block}.attn.qkv", normed(f"{block}.norm1", seen, 1e-6)).chunk(3, -1)
        seen = seen + dense(f"{block}.attn.proj", attention(q, k, v, WIDTH // 64))
        inner = gelu(dense(f"{block}.mlp.fc1", normed(f"{block}.norm2", seen, 1e-6)))
        seen = seen + dense(f"{block}.mlp.fc2", inner)
    seen = normed(f"{eye}.norm", seen, 1e-6)
    text = "blip.text_encoder"
    read = w[f"{text}.embeddings.word_embeddings.weight"][ids]
    read = read + w[f"{text}.embeddings.position_embeddings.weight"][: len(ids)]
    read = normed(f"{text}.embeddings.LayerNorm", read, 1e-12)
    for index in range(LAYERS):
        layer = f"{text}.encoder.layer.{index}"
        for part in ("attention", "crossattention"):
            source = read if part == "attention" else seen
            own = f"{layer}.{part}"
            found = attention(
                dense(f"{own}.self.query", read),
                dense(f"{own}.self.key", source),
                dense(f"{own}.self.value", source),
                HEADS,
            )
            read = normed(
                f"{own}.output.LayerNorm", dense(f"{own}.output.dense", found) + read, 1e-12
            )
        inner = dense(f"{layer}.output.dense", gelu(dense(f"{layer}.intermediate.dense", read)))
        read = normed(f"{layer}.output.LayerNorm", inner + read, 1e-12)
    value = read[0]
    for place in (0, 2, 4, 6, 7):
        value = dense(f"mlp.layers.{place}", value)
    return (float(value) - 0.16717362830052426) / 1.0333394966054072
