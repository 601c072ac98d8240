"""What the image processor of a model makes of a picture: the inputs of its vision tower, and the
text that stands for them in a prompt.

Only the image processor of a model is loaded. The text is written by the processor class of its
family, which is never constructed: that of SmolVLM would need the libraries for videos.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from quintain.models import load_pretrained

from .files import PictureError
from .store import SHORT, folder, stored

FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a processor, which a checkpoint needs beside the tokenizer."""
CACHE_BYTES = 2**28
"""Memory for the inputs of pictures; further ones are processed again."""


COUNTS = ("rows", "cols", "num_crops")
"""What image processors return for the text alone."""


@dataclass(frozen=True, kw_only=True)
class FamilyProcessor:
    """What is special to a family of models.

    Attributes:
        processor: of transformers, with the attributes that write a text and no tokenizer.
        token, placeholder, attends: see `PictureProcessor`.
        options: arguments of the image processor.
        nested: the image processor takes the pictures of each prompt in a list.
    """

    processor: Any
    token: str
    placeholder: str = ""
    attends: Literal["causal", "grid", "blocks"] = "causal"
    options: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = False


class PictureProcessor:
    """The image processor of the model *name*, a folder or one of the hub, with the configuration
    *config*.

    Attributes:
        placeholder: the text that a chat template writes for a picture.
        token: the text of each token of a picture.
        attends: ``causal`` where its tokens are as those of text; ``grid`` where their positions
            follow the grid of the picture; ``blocks`` where they see each other.
        classes: of transformers, with the classes that `quintain_vision.module.seeing` made of them.
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
        self._family = family(config, saved, self._process)
        self.token = self._family.token
        self.placeholder = self._family.placeholder or self.token
        self.attends = self._family.attends
        self.classes: dict[type, type] = {}
        self._place: Path | None = None
        self._texts: dict[str, str] = {}
        self._grids: dict[str, tuple[int, int]] = {}
        self._inputs: OrderedDict[str, dict[str, Tensor]] = OrderedDict()

    def __deepcopy__(self, memo: Any) -> PictureProcessor:
        """Return itself: copies of a module have the same one."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process, such as a rank, needs: the folder of this one's pictures, and
        nothing that was computed.
        """
        emptied: dict[str, Any] = {
            "_texts": {},
            "_grids": {},
            "_inputs": OrderedDict(),
            "classes": {},
        }
        return vars(self) | emptied | {"_place": (self._place or folder()).absolute()}

    @property
    def chat_template(self) -> str | None:
        """The chat template among the files of the processor; ``None`` if it is that of the
        tokenizer.
        """
        if text := self._files.get("chat_template.jinja"):
            return text.decode()
        template = json.loads(self._files.get("chat_template.json", b"{}")).get("chat_template")
        return template if isinstance(template, str) else None

    def save(self, target: Path) -> None:
        """Write the files of the processor to the folder *target*, which has those of its tokenizer."""
        for name, content in self._files.items():
            if not (target / name).exists():
                (target / name).write_bytes(content)

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

    def grid(self, digest: str) -> tuple[int, int]:
        """Return the rows and columns of the tokens of the picture *digest*; raises as `text`."""
        digest = digest[:SHORT]
        if digest not in self._grids:
            _, rows, columns = self.inputs(digest)["image_grid_thw"][0].tolist()
            merged = int(self._process.merge_size)
            self._grids[digest] = rows // merged, columns // merged
        return self._grids[digest]

    def inputs(self, digest: str) -> dict[str, Tensor]:
        """Return the inputs of the vision tower for the picture *digest*, by name; raises as `text`."""
        digest = digest[:SHORT]
        if digest in self._inputs:
            self._inputs.move_to_end(digest)
            return self._inputs[digest]
        image = stored(digest, self._place)
        images = [[image]] if self._family.nested else [image]
        try:
            made = self._process(images, return_tensors="pt", **self._family.options)
            self._texts[digest] = str(self._family.processor.replace_image_token(made, 0))
        except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
            raise PictureError(
                f"the processor of the model refuses picture {digest} ({image.width} x "
                f"{image.height} pixels): {error}"
            ) from error
        inputs = {name: value for name, value in made.items() if isinstance(value, Tensor)}
        inputs = {name: value for name, value in inputs.items() if name not in COUNTS}
        self._inputs[digest] = inputs
        size = sum(value.nbytes for kept in self._inputs.values() for value in kept.values())
        while size > CACHE_BYTES and len(self._inputs) > 1:
            _, dropped = self._inputs.popitem(last=False)
            size -= sum(value.nbytes for value in dropped.values())
        return inputs


def _bare(kind: type, **attributes: Any) -> Any:
    """Return a processor of *kind* that was not constructed, with *attributes*."""
    processor: Any = object.__new__(kind)
    vars(processor).update(attributes)
    return processor


def _llava(config: Mapping[str, Any], saved: Mapping[str, Any], images: Any) -> FamilyProcessor:
    from transformers import LlavaNextProcessor, LlavaProcessor

    if config["vision_config"].get("model_type") == "pixtral":
        return _pixtral(saved)
    after = config["model_type"] == "llava_next"
    strategy = config.get("vision_feature_select_strategy", "default")
    token = str(saved.get("image_token", "<image>"))
    processor = _bare(
        LlavaNextProcessor if after else LlavaProcessor,
        image_processor=images,
        image_token=token,
        patch_size=saved.get("patch_size") or config["vision_config"]["patch_size"],
        vision_feature_select_strategy=saved.get("vision_feature_select_strategy") or strategy,
        # older files lack it: the class token of CLIP
        num_additional_image_tokens=saved.get("num_additional_image_tokens", 1),
    )
    return FamilyProcessor(
        processor=processor, token=token, options={"do_pad": True} if after else {}
    )


def _pixtral(saved: Mapping[str, Any]) -> FamilyProcessor:
    size = saved.get("patch_size", 16) * saved.get("spatial_merge_size", 1)
    token = str(saved.get("image_token", "[IMG]"))
    row = str(saved.get("image_break_token", "[IMG_BREAK]"))
    end = str(saved.get("image_end_token", "[IMG_END]"))
    processor = PixtralText(size, token, row, end)
    return FamilyProcessor(processor=processor, token=token, options={"patch_size": size})


class PixtralText:
    """Writes what ``PixtralProcessor`` writes, whose module needs torchvision.

    Args:
        size: pixels of the side of a token.
        token, row, end: texts of a token, of the end of a row and of that of the picture.
    """

    def __init__(self, size: int, token: str, row: str, end: str) -> None:
        self._size, self._token, self._row, self._end = size, token, row, end

    def replace_image_token(self, made: Mapping[str, Any], index: int) -> str:
        """Return the text of picture *index* of *made*, what the image processor returned."""
        height, width = (int(side) // self._size for side in made["image_sizes"][index])
        return self._row.join([self._token * width] * height) + self._end


def _idefics3(config: Mapping[str, Any], saved: Mapping[str, Any], images: Any) -> FamilyProcessor:
    from transformers import Idefics3Processor, SmolVLMProcessor

    tower = config["vision_config"]
    side = tower.get("image_size", 364) // tower.get("patch_size", 14)
    processor = _bare(
        SmolVLMProcessor if config["model_type"] == "smolvlm" else Idefics3Processor,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
        global_image_tag="<global-img>",
        image_seq_len=saved.get("image_seq_len") or side**2 // config.get("scale_factor", 2) ** 2,
    )
    options = {"return_row_col_info": True}
    return FamilyProcessor(processor=processor, token="<image>", options=options, nested=True)


def _qwen(config: Mapping[str, Any], saved: Mapping[str, Any], images: Any) -> FamilyProcessor:
    from transformers import Qwen2_5_VLProcessor, Qwen2VLProcessor, Qwen3VLProcessor

    kinds: dict[str, Any] = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}
    token = "<|image_pad|>"
    kind = kinds.get(config["model_type"], Qwen3VLProcessor)
    processor = _bare(kind, image_processor=images, image_token=token)
    return FamilyProcessor(processor=processor, token=token, attends="grid")


def _gemma3(config: Mapping[str, Any], saved: Mapping[str, Any], images: Any) -> FamilyProcessor:
    from transformers import Gemma3Processor

    token, begin, end = "<image_soft_token>", "<start_of_image>", "<end_of_image>"
    count = saved.get("image_seq_length") or config.get("mm_tokens_per_image", 256)
    whole = f"\n\n{begin}{token * count}{end}\n\n"
    processor = _bare(Gemma3Processor, full_image_sequence=whole)
    # That class says so, over what the files of the image processor say.
    options = {"do_convert_rgb": True, "do_pan_and_scan": False}
    return FamilyProcessor(
        processor=processor, token=token, placeholder=begin, attends="blocks", options=options
    )


FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Any], FamilyProcessor]] = {
    "llava": _llava,
    "llava_next": _llava,
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "gemma3": _gemma3,
}
"""By ``config.model_type``: of the configuration of the model, the saved settings of its processor
and its image processor.
"""
