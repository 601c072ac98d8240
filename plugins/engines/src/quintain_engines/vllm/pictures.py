"""Pictures in prompts for vLLM: its placeholder where the ids of tokens of a picture stand, and beside
them the inputs of the vision tower.

vLLM's own processor is not asked. The learner's has made tokens and pixels, and vLLM takes both as
they are: what is sampled is what trains, and the number of tokens is that of the transcript. What can
differ is how many features its vision tower computes, which `SyncedEngine` compares.

Shapes: N tokens of a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.errors import UsageError
from quintain.models import PICTURE_TOKENS, HFTokenizer

EACH, JOINED, HOST = "each", "joined", "host"
"""How vLLM batches an input: a row for each picture, rows of all behind each other, or a row for each
that stays on the host.
"""
_PARTS = {"pixel_values": JOINED, "pixel_attention_mask": JOINED, "num_patches": HOST}
_GRID = (
    "with the transformers of vLLM 0.32, log-probs behind a picture differed by 5.7 nats, for a reason "
    "that is not found yet (docs/decisions/0271)"
)
INPUTS: Mapping[str, Mapping[str, str]] = {
    "llava": {"pixel_values": EACH},
    "llava_next": {"pixel_values": EACH, "image_sizes": HOST},
    "idefics3": _PARTS,
    "smolvlm": _PARTS,
}
"""Inputs of vLLM's vision towers, by ``config.model_type``."""
REFUSED = {
    "gemma3": (
        "its tokens of a picture see each other, and a prefix that vLLM caches may end inside of a picture"
    ),
    "qwen2_vl": _GRID,
    "qwen2_5_vl": _GRID,
    "qwen3_vl": _GRID,
}
"""Why a family of models is not served."""
NESTED_TOWERS = ("clip_vision_model", "siglip_vision_model")
"""Vision towers whose weights transformers 5 has one level higher than vLLM."""
TOWER = "model.vision_tower."
LANGUAGE = ("language_model", "text_model")
"""Names of the language model in a module."""
SIDES = 48, 40
"""Width and height of the picture of the canary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenPicture:
    """A picture in a prompt.

    Attributes:
        digits: of its digest.
        start, end: where its first token stands, and behind its last one.
        offsets: of its N tokens, from *start* on. Between them may be tokens of text.
    """

    digits: str
    start: int
    end: int
    offsets: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no text is between its tokens."""
        return len(self.offsets) == self.end - self.start


class Pictures:
    """How an engine sends the pictures that the *tokenizer* of its model has put into prompts.

    Args:
        config: of the model.
    """

    def __init__(self, tokenizer: HFTokenizer, config: Any) -> None:
        self._tokenizer: Any = tokenizer
        self._family = str(config.model_type)
        self.refusal = ""
        if self._family not in INPUTS:
            reason = REFUSED.get(self._family, "its inputs are not known here")
            self.refusal = f"the engines for vLLM send no pictures to a model of the family {self._family}: {reason}"

    @classmethod
    def of(cls, tokenizer: HFTokenizer, config: Any) -> Pictures | None:
        """Return them for a *tokenizer* whose prompts hold pictures; ``None`` for one of text."""
        return cls(tokenizer, config) if hasattr(tokenizer, "processor") else None

    def seen(self, ids: Sequence[int]) -> list[SeenPicture]:
        """Return the pictures of the prompt *ids*, in their order.

        Raises:
            UsageError: the family of the model is refused.
            ValueError: a picture is not whole.
        """
        if max(ids, default=0) < PICTURE_TOKENS:
            return []
        if self.refusal:
            raise UsageError(f'{self.refusal}; use engine.use = "embedded" (docs/pictures.md)')
        return [
            SeenPicture(
                digits=digits,
                start=places[0],
                end=places[-1] + 1,
                offsets=tuple(place - places[0] for place in places),
            )
            for digits, places in self._tokenizer.pictures(ids)
        ]

    def plain(self, ids: Sequence[int]) -> list[int]:
        """Return the prompt *ids* with vLLM's placeholder for each token of a picture."""
        if max(ids, default=0) < PICTURE_TOKENS:
            return list(ids)
        placeholder = self._tokenizer.placeholder_id
        return [placeholder if token >= PICTURE_TOKENS else token for token in ids]

    def item(self, digits: str, dtype: str) -> Any:
        """Return the inputs of the vision tower for the picture *digits* as vLLM's
        ``MultiModalKwargsItem``, its numbers in *dtype*, the name of a type of torch, or as they are.
        """
        import torch
        from vllm.multimodal import inputs as kinds

        made = dict(self._tokenizer.processor.inputs(digits))
        fields = INPUTS[self._family]
        if "num_patches" in fields:
            # The image processor of the family has the patches of all pictures of a prompt in one row.
            made = {name: value[0] for name, value in made.items()}
            made["num_patches"] = torch.tensor([len(made["pixel_values"])])
        elements = {}
        for name, how in fields.items():
            value = made[name]
            if value.is_floating_point() and (kind := getattr(torch, dtype, None)):
                value = value.to(kind)
            field: Any
            if how == JOINED:
                field = kinds.MultiModalFlatField(slices=[slice(0, len(value))])
            else:
                field = kinds.MultiModalBatchedField(keep_on_cpu=how == HOST)
                (value,) = value
            elements[name] = kinds.MultiModalFieldElem(data=value, field=field)
        return kinds.MultiModalKwargsItem(elements)

    def canary(self) -> list[int]:
        """Return the tokens of a fixed picture of noise, with the text around them, which it stores."""
        tokens: list[int] = self._tokenizer.noise(*SIDES)
        return tokens


def adapts_tower(module: Any) -> bool:
    """Return whether the vision tower or the projector of *module*, a module of transformers that sees,
    has adapters.
    """
    adapters = [name.split(".") for name, _ in module.named_parameters() if ".lora_" in name]
    return any(not {*LANGUAGE} & {*parts} for parts in adapters)


def identifier(picture: SeenPicture, version: int) -> str:
    """Return the name under which vLLM caches the features of *picture*, and keys and values behind it,
    under weights of *version*.
    """
    return f"{picture.digits}-{version}"


def served_name(config: Any, name: str) -> str:
    """Return how vLLM's loader knows the weight or layer *name* of a module with *config*."""
    tower = getattr(config, "vision_config", None)
    nested = getattr(tower, "model_type", "") in NESTED_TOWERS
    if nested and name.startswith(TOWER) and not name.startswith(f"{TOWER}vision_model."):
        return f"{TOWER}vision_model.{name.removeprefix(TOWER)}"
    return name


class ServedTensors(Mapping[str, Any]):
    """The *tensors* of a module with *config*, by the names that vLLM's loader knows. They are made
    when they are asked for, as those of ranks.
    """

    def __init__(self, tensors: Mapping[str, Any], config: Any) -> None:
        self._tensors = tensors
        self._names = {served_name(config, name): name for name in tensors}

    def __getitem__(self, name: str) -> Any:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def served(tensors: Mapping[str, Any], config: Any) -> Mapping[str, Any]:
    """Return *tensors*, weights of a module with *config*, by the names that vLLM's loader knows."""
    if not hasattr(config, "vision_config"):
        return tensors
    if isinstance(tensors, dict):
        return {served_name(config, name): tensor for name, tensor in tensors.items()}
    return ServedTensors(tensors, config)
