"""What the image processor of a model makes of a picture: the inputs of its vision tower, and the
text that stands for them in a prompt.

Only the image processor of a model is loaded. The text is written by the processor class of its
family, which is never constructed: that of SmolVLM would need the libraries for videos.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from quintain.models import load_pretrained

from .files import PictureError
from .store import SHORT, get

FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a processor, which a checkpoint needs beside the tokenizer."""
CACHE_BYTES = 2**28
"""Memory for the inputs of pictures; further ones are processed again."""


class PictureProcessor:
    """The image processor of the model *name*, a folder or one of the hub, with the configuration
    *config*.

    Attributes:
        token: the text that a chat template writes for a picture.
    """

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        from transformers import AutoImageProcessor
        from transformers.utils import cached_file

        # of torch would need torchvision, and differs from that of Pillow in the last bits
        self._process = load_pretrained(AutoImageProcessor, name, backend="pil")
        lenient = {
            "_raise_exceptions_for_missing_entries": False,
            "_raise_exceptions_for_connection_errors": False,
        }
        paths = {file: cached_file(name, file, **lenient) for file in FILES}
        self._files = {file: Path(path).read_bytes() for file, path in paths.items() if path}
        saved = json.loads(self._files.get("processor_config.json", b"{}"))
        family = FAMILIES[str(config["model_type"])]
        self._settings = family(config, saved)
        self.token = str(self._settings.image_token)
        self._texts: dict[str, str] = {}
        self._inputs: OrderedDict[str, dict[str, Tensor]] = OrderedDict()

    @property
    def chat_template(self) -> str | None:
        """The chat template among the files of the processor; ``None`` if it is that of the
        tokenizer.
        """
        if text := self._files.get("chat_template.jinja"):
            return text.decode()
        template = json.loads(self._files.get("chat_template.json", b"{}")).get("chat_template")
        return template if isinstance(template, str) else None

    def save(self, folder: Path) -> None:
        """Write the files of the processor to *folder*, which has those of its tokenizer."""
        for name, content in self._files.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(content)

    def text(self, digest: str) -> str:
        """Return the text for the picture whose digest begins with *digest*, with `token` once for each of its tokens.

        Raises:
            PictureError: the picture is lost, or the processor refuses it.
        """
        if digest[:SHORT] not in self._texts:
            self.inputs(digest)
        return self._texts[digest[:SHORT]]

    def tokens(self, digest: str) -> int:
        """Return the number of tokens of the picture *digest*; raises as `text`."""
        return self.text(digest).count(self.token)

    def inputs(self, digest: str) -> dict[str, Tensor]:
        """Return the inputs of the vision tower for the picture *digest*, by name; raises as `text`."""
        digest = digest[:SHORT]
        if digest in self._inputs:
            self._inputs.move_to_end(digest)
            return self._inputs[digest]
        image = get(digest)
        settings = self._settings
        try:
            made = self._process(settings.nested(image), return_tensors="pt", **settings.options)
            self._texts[digest] = str(settings.kind.replace_image_token(settings, made, 0))
        except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
            raise PictureError(
                f"the processor of the model refuses picture {digest} ({image.width} x "
                f"{image.height} pixels): {error}"
            ) from error
        inputs = {name: value for name, value in made.items() if isinstance(value, Tensor)}
        inputs = {name: value for name, value in inputs.items() if name not in ("rows", "cols")}
        self._inputs[digest] = inputs
        size = sum(value.nbytes for kept in self._inputs.values() for value in kept.values())
        while size > CACHE_BYTES and len(self._inputs) > 1:
            _, dropped = self._inputs.popitem(last=False)
            size -= sum(value.nbytes for value in dropped.values())
        return inputs


def _llava(config: Mapping[str, Any], saved: Mapping[str, Any]) -> SimpleNamespace:
    from transformers import LlavaProcessor

    tower = config["vision_config"]
    strategy = config.get("vision_feature_select_strategy", "default")
    return SimpleNamespace(
        kind=LlavaProcessor,
        nested=lambda image: [image],
        options={},
        image_token=saved.get("image_token", "<image>"),
        patch_size=saved.get("patch_size") or tower["patch_size"],
        vision_feature_select_strategy=saved.get("vision_feature_select_strategy") or strategy,
        # older files lack it: the class token of CLIP
        num_additional_image_tokens=saved.get("num_additional_image_tokens", 1),
    )


def _idefics3(config: Mapping[str, Any], saved: Mapping[str, Any]) -> SimpleNamespace:
    from transformers import Idefics3Processor, SmolVLMProcessor

    tower = config["vision_config"]
    side = tower.get("image_size", 364) // tower.get("patch_size", 14)
    smol = config["model_type"] == "smolvlm"
    return SimpleNamespace(
        kind=SmolVLMProcessor if smol else Idefics3Processor,
        nested=lambda image: [[image]],
        options={"return_row_col_info": True},
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
        global_image_tag="<global-img>",
        image_seq_len=saved.get("image_seq_len") or side**2 // config.get("scale_factor", 2) ** 2,
    )


FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], SimpleNamespace]] = {
    "llava": _llava,
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
}
"""By ``config.model_type``: what the processor class of a family reads of itself. Their positions
are those of text, and their attention is causal.
"""
