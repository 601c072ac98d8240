"""Scores of (prompt, picture) pairs, in the form in which texts are scored: so training, ensembles,
the service ``reward_model`` and the monitor are those of texts.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintain.errors import RewardFault, UsageError
from quintain.models import as_device

from .conversations import BETWEEN, Conversation
from .image_reward import (
    ImageReward,
    load_image_reward,
    pixels_of,
    small_settings,
    words_tokenizer,
)
from .scoring_model import ScoreStatistics, ScoringModel, Side

KEPT = 512
"""Pictures whose pixels are kept ready; of 224 by 224 pixels they are 300 MB."""


@dataclass(frozen=True, kw_only=True)
class PictureScoringModel(ScoringModel):
    """An `ImageReward` and its tokenizer.

    A row is the tokens of the prompt, and then the digest of the picture as a number.
    """

    module: ImageReward
    pixels: OrderedDict[int, Tensor] = field(default_factory=OrderedDict)

    @property
    def example(self) -> str:
        from PIL import Image

        from quintain_vision import picture

        file = io.BytesIO()
        Image.new("RGB", (8, 8), "white").save(file, "PNG")
        return picture(file.getvalue())

    @property
    def caution(self) -> str:
        return ""

    @property
    def pools_here(self) -> bool:
        return False

    def encode(self, conversation: Conversation, max_length: int = 0) -> list[int]:
        """Return the row of a conversation: its texts are the prompt, and it has one picture.

        Of a longer prompt than the model reads the end is left out, as the published model does.

        Raises:
            RewardFault: it has no picture, or several.
        """
        from quintain_vision import parts

        found = [part for message in conversation for part in parts(message.content)]
        pictures = [part["digest"] for part in found if part["type"] == "image"]
        if len(pictures) != 1:
            raise RewardFault(
                f"the conversation has {len(pictures)} pictures, and the reward model {self.path} "
                "scores a prompt with one"
            )
        texts = [part["text"].strip() for part in found if part["type"] == "text"]
        prompt = BETWEEN.join(text for text in texts if text)
        limit = min(max_length or self.context, self.context)
        ids = self.tokenizer(prompt, truncation=True, max_length=limit)["input_ids"]
        return [*ids, int(pictures[0], 16)]

    def logits(self, rows: Sequence[Sequence[int]], *, side: Side = "right") -> Tensor:
        """Return the scores of *rows*, shape (rows,), differentiable.

        Raises:
            UsageError: left padding, or a picture is lost.
        """
        if side == "left":
            raise UsageError("a model of pictures counts positions from the left; pad on the right")
        longest = max(map(len, rows)) - 1
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row) - 1] = torch.tensor(list(row[:-1]))
            mask[index, : len(row) - 1] = 1
        pixels = torch.stack([self._pixels(row[-1]) for row in rows])
        device = self.module.device
        scores: Tensor = self.module(ids.to(device), mask.to(device), pixels.to(device))
        return scores

    def _pixels(self, number: int) -> Tensor:
        from quintain_vision import stored

        if number not in self.pixels:
            side = int(self.module.settings["vision"]["image_size"])
            self.pixels[number] = pixels_of(stored(f"{number:032x}"), side)
            if len(self.pixels) > KEPT:
                self.pixels.popitem(last=False)
        self.pixels.move_to_end(number)
        return self.pixels[number]


def load_picture_model(name: str, *, dtype: str, device: str) -> PictureScoringModel:
    """Load a folder of ImageReward, ours or the published one; raises as `load_image_reward`."""
    module, tokenizer = load_image_reward(name, dtype=dtype, device=device)
    return PictureScoringModel(
        module=module,
        tokenizer=tokenizer,
        path=name,
        context=int(module.settings["words"]),
        statistics=ScoreStatistics.read(str(Path(name).expanduser())),
    )


def new_picture_model(
    prompts: Sequence[str], *, seed: int, device: str = "auto", **sizes: int
) -> PictureScoringModel:
    """Return a small model of random weights in float32, whose words are those of *prompts*.

    The head is drawn as that of texts, from a normal distribution of variance 1 / (width + 1).

    Args:
        sizes: arguments of `small_settings`.
    """
    torch.manual_seed(seed)
    tokenizer: Any = words_tokenizer(prompts)
    module = ImageReward(small_settings(len(tokenizer), **sizes))
    layer = module.head[0]
    assert isinstance(layer, torch.nn.Linear)
    with torch.no_grad():
        layer.weight.normal_(0, (layer.in_features + 1) ** -0.5)
        layer.bias.zero_()
    return PictureScoringModel(
        module=module.to(as_device(device)).eval(),
        tokenizer=tokenizer,
        path="default",
        context=int(module.settings["words"]),
    )
