"""The architecture of ImageReward (Xu et al. 2023, 2304.05977, section 3.1): BLIP reads the prompt
with cross-attention to the picture, and a head on its first token is the score.

Folders are of two kinds. Ours has `CONFIG` and ``model.safetensors``, as `ImageReward.save_pretrained`
writes them. The published one has ``ImageReward.pt`` and ``med_config.json``, as on the hub.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quintain.errors import UsageError
from quintain.models import as_device, load_pretrained

from .loading import DTYPES, without_dropout

CONFIG, WEIGHTS = "image_reward.json", "model.safetensors"
PUBLISHED, PUBLISHED_TEXT = "ImageReward.pt", "med_config.json"
PUBLISHED_TOKENIZER = "bert-base-uncased"
"""On the hub; read where the folder has no tokenizer."""
PUBLISHED_WORDS = 35
"""Tokens of a prompt that are read, with those that begin and end it; the rest is cut off."""
PUBLISHED_MEAN, PUBLISHED_STD = 0.16717362830052426, 1.0333394966054072
"""Of the scores on the authors' data, which the package ``image-reward`` 1.5 subtracts and divides
by."""
HEAD_WIDTH = 64
"""Of each head of the published vision transformers, base and large."""
PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)
"""Of the colours, red, green and blue, from 0 to 1; those of CLIP."""
_RENAMED = (
    (r"blip\.visual_encoder\.cls_token", "vision.embeddings.class_embedding"),
    (r"blip\.visual_encoder\.pos_embed", "vision.embeddings.position_embedding"),
    (r"blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"blip\.visual_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision.encoder.layers.\1.layer_norm\2."),
    (
        r"blip\.visual_encoder\.blocks\.(\d+)\.attn\.qkv\.",
        r"vision.encoder.layers.\1.self_attn.qkv.",
    ),
    (
        r"blip\.visual_encoder\.blocks\.(\d+)\.attn\.proj\.",
        r"vision.encoder.layers.\1.self_attn.projection.",
    ),
    (r"blip\.visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision.encoder.layers.\1.mlp."),
    (r"blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
    (r"blip\.text_encoder\.", "text."),
    # Linear layers of the head, with dropout between the first four
    (r"mlp\.layers\.0\.", "head.0."),
    (r"mlp\.layers\.2\.", "head.1."),
    (r"mlp\.layers\.4\.", "head.2."),
    (r"mlp\.layers\.6\.", "head.3."),
    (r"mlp\.layers\.7\.", "head.4."),
)
_UNUSED = re.compile(
    r"blip\.(vision_proj|text_proj)\.|blip\.text_encoder\.embeddings\.position_ids"
)


class ImageReward(nn.Module):
    """Scores (prompt, picture) pairs.

    Attributes:
        settings: ``vision`` and ``text`` with the fields of `BlipVisionConfig` and `BlipTextConfig`;
            ``head``, the widths between its linear layers, which have no non-linearity between them;
            ``mean`` and ``std``, subtracted from the score, and dividing it; ``words``, the most
            tokens of a prompt.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        super().__init__()
        self.settings = dict(settings)
        vision = BlipVisionConfig(**settings["vision"])
        # transformers calls layers with cross-attention those of a decoder; the mask of this one is
        # that of an encoder, as `forward` asks for.
        text = BlipTextConfig(
            **{**settings["text"], "is_decoder": True, "encoder_hidden_size": vision.hidden_size},
            **dict.fromkeys(
                ("bos_token_id", "eos_token_id", "sep_token_id")
            ),  # for generation alone
        )
        self.vision = BlipVisionModel(vision)
        self.text = BlipTextModel(text, add_pooling_layer=False)
        widths = (text.hidden_size, *settings["head"], 1)
        self.head = nn.Sequential(*(nn.Linear(before, after) for before, after in pairwise(widths)))
        without_dropout(self)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, ids: Tensor, mask: Tensor, pixels: Tensor) -> Tensor:
        """Return the scores, shape (rows,), in float32 or wider.

        Args:
            ids: of the prompts, shape (rows, tokens), padded on the right.
            mask: 1 for tokens and 0 for padding, of the same shape.
            pixels: shape (rows, 3, side, side), as `pixels_of` returns them.
        """
        patches = self.vision(pixel_values=pixels.to(self.vision.dtype)).last_hidden_state
        read = self.text(
            input_ids=ids,
            attention_mask=mask,
            encoder_hidden_states=patches,
            encoder_attention_mask=torch.ones(
                patches.shape[:2], dtype=torch.long, device=ids.device
            ),
            is_decoder=False,
        )
        value = read.last_hidden_state[:, 0]
        if value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()
        for layer in self.head:
            assert isinstance(layer, nn.Linear)
            value = nn.functional.linear(
                value, layer.weight.to(value.dtype), layer.bias.to(value.dtype)
            )
        scores: Tensor = (value[:, 0] - self.settings["mean"]) / self.settings["std"]
        return scores

    def save_pretrained(self, folder: Path) -> None:
        """Write the model to *folder*, which is there."""
        from safetensors.torch import save_file

        (Path(folder) / CONFIG).write_text(
            json.dumps(self.settings, indent=1) + "\n", encoding="utf-8"
        )
        save_file(self.state_dict(), Path(folder) / WEIGHTS)


def is_image_reward(name: str) -> bool:
    """Return whether *name* is a folder of this architecture."""
    folder = Path(name).expanduser()
    return (folder / CONFIG).is_file() or (folder / PUBLISHED).is_file()


def load_image_reward(name: str, *, dtype: str, device: str) -> tuple[ImageReward, Any]:
    """Return the model in the folder *name*, ours or the published one, and its tokenizer.

    Raises:
        UsageError: it is damaged, a tensor is missing, unknown or of another shape, the tokenizer
            cannot be read, or there is no such dtype or device.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    folder = Path(name).expanduser()
    published = not (folder / CONFIG).is_file()
    settings, tensors = (_published if published else _own)(folder)
    try:
        module = ImageReward(settings)
        if not (math.isfinite(settings["mean"]) and settings["std"] > 0 < settings["words"]):
            raise ValueError("expected a finite mean, and std and words above 0")
    except Exception as error:  # the classes of BLIP raise their own for a value
        raise UsageError(
            f"{folder / CONFIG} has not the settings of a model ({type(error).__name__}: {error}); "
            "train or copy it again"
        ) from error
    have = {key: value.shape for key, value in module.state_dict().items()}
    given = {key: value.shape for key, value in tensors.items()}
    wrong = sorted(key for key in have.keys() | given.keys() if have.get(key) != given.get(key))
    if wrong:
        raise UsageError(
            f"{folder}: tensor {wrong[0]!r} has shape {[*given.get(wrong[0], ())] or 'none'}, and the "
            f"model needs {[*have.get(wrong[0], ())] or 'none'} ({len(wrong)} such tensors); it is no "
            "folder of ImageReward, or damaged"
        )
    module.load_state_dict(tensors)
    tokenizer = _tokenizer(folder)
    return module.to(DTYPES[dtype]).to(as_device(device)).eval(), tokenizer


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer, BertTokenizer

    if (folder / "tokenizer_config.json").is_file():
        return load_pretrained(AutoTokenizer, str(folder))
    if (folder / "vocab.txt").is_file():  # a vocabulary says no class
        return load_pretrained(BertTokenizer, str(folder))
    return load_pretrained(AutoTokenizer, PUBLISHED_TOKENIZER)


def _own(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return settings, load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"{folder} is damaged: {error}; train or copy it again") from error


def _published(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        text = json.loads((folder / PUBLISHED_TEXT).read_text(encoding="utf-8"))
        saved = torch.load(folder / PUBLISHED, map_location="cpu", weights_only=True)
        tensors = {_renamed(key): value for key, value in saved.items() if not _UNUSED.match(key)}
        return {**_settings(tensors, text), "words": PUBLISHED_WORDS}, tensors
    except Exception as error:  # JSON, zip, pickle and torch each raise their own
        raise UsageError(
            f"{folder} is no folder of ImageReward, or damaged: {type(error).__name__}: {error}. "
            f"Download {PUBLISHED} and {PUBLISHED_TEXT} of THUDM/ImageReward into it"
        ) from error


def _renamed(key: str) -> str:
    for pattern, name in _RENAMED:
        if found := re.match(pattern, key):
            return found.expand(name) + key[found.end() :]
    raise UsageError(f"tensor {key!r} is none of ImageReward")


def _settings(tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> dict[str, Any]:
    """Read the sizes off the tensors; the published folder names those of the text alone."""
    patches = tensors["vision.embeddings.patch_embedding.weight"]
    width, patch = patches.shape[0], patches.shape[-1]
    places = tensors["vision.embeddings.position_embedding"].shape[1] - 1
    layers = {key.split(".")[3] for key in tensors if key.startswith("vision.encoder.layers.")}
    fields = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "max_position_embeddings hidden_act layer_norm_eps pad_token_id"
    )
    head = [tensors[f"head.{index}.weight"].shape[0] for index in range(4)]
    return {
        "vision": {
            "hidden_size": width,
            "intermediate_size": tensors["vision.encoder.layers.0.mlp.fc1.weight"].shape[0],
            "num_hidden_layers": len(layers),
            "num_attention_heads": width // HEAD_WIDTH,
            "image_size": math.isqrt(places) * patch,
            "patch_size": patch,
            "layer_norm_eps": 1e-6,
            "hidden_act": "gelu",
        },
        "text": {key: text[key] for key in fields.split() if key in text},
        "head": head,
        "mean": PUBLISHED_MEAN,
        "std": PUBLISHED_STD,
    }


def pixels_of(image: Any, side: int) -> Tensor:
    """Return an RGB image of pillow as the model reads it, shape (3, side, side): its shorter side is
    *side* pixels, and the middle of the longer one stays.
    """
    from PIL.Image import Resampling

    width, height = image.size
    if width <= height:
        size = (side, int(side * height / width))
    else:
        size = (int(side * width / height), side)
    if size != image.size:
        image = image.resize(size, Resampling.BICUBIC)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    image = image.crop((left, top, left + side, top + side))
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    values = values.view(side, side, 3).permute(2, 0, 1).float() / 255
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (PIXEL_MEAN, PIXEL_STD))
    return (values - mean) / std


def small_settings(
    words: int, *, side: int = 64, patch: int = 8, width: int = 64
) -> dict[str, Any]:
    """Return the settings of a small model with a vocabulary of *words*, whose head is one layer."""
    inner = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
        "initializer_range": 0.1,  # narrow layers: that of BLIP is for a width of 768
    }
    return {
        "vision": {**inner, "image_size": side, "patch_size": patch, "layer_norm_eps": 1e-6},
        "text": {
            **inner,
            "vocab_size": words,
            "max_position_embeddings": 64,
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
        },
        "head": [],
        "mean": 0.0,
        "std": 1.0,
        "words": 64,
    }


def words_tokenizer(prompts: Sequence[str]) -> Any:
    """Return a tokenizer with the words of *prompts*, one token each."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.BertPreTokenizer()
    found = {word for text in prompts for word, _ in split.pre_tokenize_str(text.lower())}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: index for index, word in enumerate([*special, *sorted(found)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = split
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
