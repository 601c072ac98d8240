"""A vision-language module of transformers whose table of embeddings knows the tokens of pictures.

The module stays one of transformers, with its names and files. Whoever turns ids into hidden states
asks this table, be it the module's own forward, the embedded engine or a layout of the learner. For
the id of a token of a picture it returns what the vision tower computes there.

Shapes: T ids of any shape, N tokens of a picture, D hidden size.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.distributed import is_available
from torch.distributed.fsdp import FSDPModule

from quintain import Message
from quintain.errors import UsageError
from quintain.interfaces import changes_of
from quintain.models import PICTURE_PLACES, PICTURE_TOKENS, body_of

from .files import PictureError
from .grids import GridBody, GridForward, GridRotary, positions
from .messages import references
from .processor import CACHE_BYTES as INPUT_BYTES
from .processor import PictureProcessor
from .store import SHORT
from .tokens import digits_of, key_of

CACHE_BYTES = 2**28
"""Memory for the features of pictures that are computed without a gradient."""
LANGUAGE = ("language_model", "text_model")
"""Names of the language model in the body of a module."""


@dataclass(frozen=True, kw_only=True)
class PictureBytes:
    """Bytes that pictures take in float32.

    Attributes:
        kept: of the vision tower and the projector for their backward pass; 0 where none of it trains.
        cached: features, and inputs of the tower.
    """

    kept: int
    cached: int


class SeesPictures:
    """Mixed into a class of transformers by `seeing`.

    Attributes:
        processor: of the model.
        kind: the class of transformers.
        cache_bytes: of the caches of features and of inputs, at most.
    """

    processor: ClassVar[PictureProcessor]
    kind: ClassVar[type]
    cache_bytes: ClassVar[int] = CACHE_BYTES + INPUT_BYTES

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        module: Any = self
        table = module.get_input_embeddings()
        _mix(table, _PictureTable)
        # no part of the table, of which the module would be a part
        object.__setattr__(table, "owner", module)
        object.__setattr__(table, "cache", FeatureCache())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Another process, such as a rank, finds no class of this name that has a processor.
        arguments = (self.kind, self.processor, cast(Any, self).config)
        return _seen_again, arguments, self.__getstate__()

    def tokens_of_pictures(self, messages: Sequence[Message]) -> int:
        """Return the tokens of the pictures in *messages*; raises as `PictureProcessor.text`."""
        return sum(self.processor.tokens(digits) for digits in _digits(messages))

    def bytes_of_pictures(self, messages: Sequence[Message]) -> PictureBytes:
        """Return what the pictures in *messages* take; raises as `PictureProcessor.text`. The module
        needs no weights.

        Of each of its maps a block of the tower keeps the input, and what the next operation reads of
        its output: for each place of a patch the sum of the widths of both. So does the projector for
        each token.
        """
        parts = [*tower_parts(cast(Any, self)).values()]
        blocks = max(_lists(parts), key=len, default=nn.ModuleList())
        of_blocks = {id(part) for part in blocks.modules()}
        maps = [m for part in parts for m in part.modules() if isinstance(m, nn.Linear)]
        per_patch = sum(m.in_features + m.out_features for m in maps if id(m) in of_blocks)
        per_patch += sum(map(_kept_between, blocks))
        per_token = sum(m.in_features + m.out_features for m in maps if id(m) not in of_blocks)
        trains = any(p.requires_grad for part in parts for p in part.parameters())
        patch = next(p for part in parts for p in part.parameters() if p.ndim > 3)[0].numel()
        hidden = cast(Any, self).get_input_embeddings().weight.shape[1]
        deeper = len(getattr(cast(Any, self).config.vision_config, "deepstack_visual_indexes", ()))
        kept = cached = 0
        for digits in _digits(messages):
            inputs, tokens = self.processor.inputs(digits), self.processor.tokens(digits)
            kept += 4 * (inputs["pixel_values"].numel() // patch * per_patch + tokens * per_token)
            cached += 4 * tokens * hidden * (1 + deeper)
            cached += sum(value.nbytes for value in inputs.values())
        return PictureBytes(kept=kept if trains else 0, cached=cached)

    def save_pretrained(self, folder: str | Path, *args: Any, **options: Any) -> None:
        """Save as transformers does, with the files of the processor."""
        cast(Any, super()).save_pretrained(folder, *args, **options)
        self.processor.save(Path(folder))


class SeesGrids(SeesPictures):
    """`SeesPictures` of a class whose positions follow the grid of a picture."""

    decodes_by = GridForward

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        body = body_of(self)
        _mix(body, GridBody)
        _mix(body.language_model.rotary_emb, GridRotary)

    def positions_of(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the positions of the tokens of a row."""
        return positions(self.processor, ids)[0]


class SeesBlocks(SeesPictures):
    """`SeesPictures` of a class in which the tokens of a picture see each other."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _mix(body_of(self), _BlockBody)


def seeing(kind: type, processor: PictureProcessor) -> Any:
    """Return *kind*, a class of transformers, with `SeesPictures`; its name, which is saved, stays."""
    if kind not in processor.classes:
        mixin = {"causal": SeesPictures, "grid": SeesGrids, "blocks": SeesBlocks}[processor.attends]
        names = {"processor": processor, "kind": kind, "__module__": kind.__module__}
        processor.classes[kind] = type(kind.__name__, (mixin, kind), names)
    return processor.classes[kind]


def _seen_again(kind: type, processor: PictureProcessor, config: Any) -> Any:
    """Return a module of *kind* without its state."""
    if kind not in processor.classes:
        with torch.device("meta"):
            # transformers notes what a class returns when it makes one, and towers rely on it.
            seeing(kind, processor)(copy.deepcopy(config))
    return object.__new__(seeing(kind, processor))


def _digits(messages: Sequence[Message]) -> list[str]:
    return [found[3][:SHORT] for message in messages for found in references(message)]


def _kept_between(block: nn.Module) -> int:
    """Return the numbers of a place that a block keeps beside inputs and outputs of its maps: RMS norms
    of transformers keep their input twice more, in float32, and a sigmoid and a product, of gates or
    of `quick_gelu`, their results.
    """
    kinds = [type(part).__name__ for part in block.modules()]
    maps = [m for m in block.modules() if isinstance(m, nn.Linear)]
    products = any("QuickGELU" in kind for kind in kinds) or any(
        hasattr(part, "gate_proj") for part in block.modules()
    )
    norms = sum("RMSNorm" in kind for kind in kinds)
    width = max(m.out_features for m in maps)
    return 2 * width * products + 2 * maps[-1].out_features * norms


def _lists(parts: Sequence[nn.Module]) -> list[nn.ModuleList]:
    return [m for part in parts for m in part.modules() if isinstance(m, nn.ModuleList)]


def tower_parts(module: nn.Module) -> Mapping[str, nn.Module]:
    """Return the parts of the body of *module* that are no language model, by their names: vision
    tower and projector.
    """
    return {name: part for name, part in body_of(module).named_children() if name not in LANGUAGE}


class FeatureCache:
    """The features of pictures, until the weights that computed them change; a copied module begins
    with an empty one.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, ...] = ()
        self._features: OrderedDict[int, Tensor] = OrderedDict()

    def __deepcopy__(self, memo: Any) -> FeatureCache:
        return FeatureCache()

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureCache, ()

    def get(self, key: int, state: tuple[Any, ...]) -> Tensor | None:
        """Return the features of a picture under weights with *state*; ``None`` if there are none."""
        if state != self._state:
            self._features.clear()
            self._state = state
        return self._features.get(key)

    def put(self, key: int, features_ND: Tensor) -> None:
        """Keep *features_ND* under the state of the last `get`."""
        self._features[key] = features_ND
        size = sum(kept.nbytes for kept in self._features.values())
        while size > CACHE_BYTES and len(self._features) > 1:
            size -= self._features.popitem(last=False)[1].nbytes


class _PictureTable:
    """A table of embeddings; mixed into its class."""

    owner: Any
    cache: FeatureCache
    weight: nn.Parameter

    def forward(self, ids: Tensor) -> Tensor:
        """Return hidden states [..., D] of *ids*, text and pictures."""
        if ids.is_cuda and torch.cuda.is_current_stream_capturing():
            # steps of decoding, which append no picture
            return cast(Tensor, cast(Any, super()).forward(ids))
        return self.begin(ids)[0]

    def begin(self, ids: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return hidden states [..., D] of *ids*, and what is added to the output of each of the first
        layers, [..., D]: further features of pictures, of models that have such.
        """
        seen = ids >= PICTURE_TOKENS
        rows = cast(Any, super()).forward(ids.masked_fill(seen, 0))
        hidden: Tensor = rows
        pictures = bool(seen.any())
        touches = torch.is_grad_enabled() and (not pictures or self._sharded())
        # Ranks add up the gradients of what is outside of the layers together, so each one needs all
        # of them. And where adapters of the tower alone train, text has a gradient, too.
        if touches and (trained := [p for p in self._tower() if p.requires_grad]):
            hidden = cast(Any, _Touched).apply(rows, *trained)
        if not pictures:
            return hidden, ()
        places = ids[seen]
        firsts, which = torch.unique(places - places % PICTURE_PLACES, return_inverse=True)
        features = [self._features(key_of(first)) for first in firsts.tolist()]
        begins = torch.tensor([0, *(len(part) for part in features)]).cumsum(0)[:-1]
        index = begins.to(ids.device)[which] + places % PICTURE_PLACES
        chosen = torch.cat(features).to(hidden.dtype).index_select(0, index)
        first, *more = chosen.reshape(len(chosen), -1, hidden.shape[-1]).unbind(-2)
        blank = torch.zeros_like(hidden)
        added = [blank.masked_scatter(seen.unsqueeze(-1), part) for part in more]
        return hidden.masked_scatter(seen.unsqueeze(-1), first), added

    def _features(self, key: int) -> Tensor:
        """Return the features of the picture with *key*, [N, D], or side by side with those for deeper
        layers: with a gradient if one is computed and the tower trains, else from the cache.
        """
        parts = [*tower_parts(self.owner).values()]
        parameters = self._tower()
        trains = any(p.requires_grad for p in parameters)
        if trains and (torch.is_grad_enabled() or self._sharded()):
            return self._computed(key)  # gathered weights do not count their changes
        device = parameters[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        # Weights change in place: an update adds to the version of each.
        counts = [changes_of(cast(Any, SimpleNamespace(module=part))) for part in parts]
        # Adapters in the tower may be off, as for the reference, or others.
        adapters = [
            (layer.disable_adapters, *cast(Any, layer).active_adapters)
            for part in parts
            for layer in part.modules()
            if isinstance(getattr(layer, "disable_adapters", None), bool)
        ]
        state = (autocast, *map(id, parameters), *counts, *adapters)
        features = self.cache.get(key, state)
        if features is None:
            # Made in inference mode, it could be part of no later pass with a gradient.
            with torch.inference_mode(False), torch.no_grad():
                features = self._computed(key)
            self.cache.put(key, features)
        return features

    def _tower(self) -> list[nn.Parameter]:
        return [p for part in tower_parts(self.owner).values() for p in part.parameters()]

    def _sharded(self) -> bool:
        """Return whether ranks have parts of the weights each, which are gathered for a pass."""
        return is_available() and isinstance(body_of(self.owner), FSDPModule)

    def _computed(self, key: int) -> Tensor:
        body = body_of(self.owner)
        parameter = self.weight
        # Each picture alone: what is beside it would change the last digits.
        inputs = {
            name: value.to(parameter.device, parameter.dtype)
            if value.is_floating_point()
            else value.to(parameter.device)
            for name, value in self.owner.processor.inputs(digits_of(key)).items()
        }
        output = body.get_image_features(**inputs, return_dict=True)
        deeper = getattr(output, "deepstack_features", None) or ()
        features = torch.cat([torch.cat([*part]) for part in (output.pooler_output, *deeper)], -1)
        expected = self.owner.processor.tokens(digits_of(key))
        if len(features) != expected:
            raise PictureError(
                f"picture {digits_of(key)} has {len(features)} features for {expected} tokens: the "
                "files of the processor are of another model"
            )
        return features


class _Touched(torch.autograd.Function):
    """Hidden states as they are, with gradients of 0 for parameters."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad, *map(torch.zeros_like, ctx.saved_tensors))


class _BlockBody:
    """The body of a module in which the tokens of a picture see each other; mixed into its class."""

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        """Compute the forward of the body, with the pictures in *input_ids* [n, T].

        Raises:
            UsageError: it has a mask of scores, which a caller made without knowing of pictures.
        """
        mask = options.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 4:
            raise UsageError(f"{type(self).__name__} makes its masks itself, for pictures")
        if input_ids is not None and bool((input_ids >= PICTURE_TOKENS).any()):
            options["token_type_ids"] = (input_ids >= PICTURE_TOKENS).long()
        return cast(Any, super()).forward(input_ids=input_ids, **options)


_CLASSES: dict[tuple[type, type], type] = {}


def _mix(part: nn.Module, mixin: type) -> None:
    """Give *part* a class of the same name with *mixin*."""
    part.__class__ = _mixed(type(part), mixin)


def _mixed(kind: type, mixin: type) -> type:
    if (kind, mixin) not in _CLASSES:

        def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
            # Another process finds no class of this name with the mixin.
            return _mixed_again, (kind, mixin), self.__getstate__()

        names = {"__module__": kind.__module__, "__reduce_ex__": reduce}
        _CLASSES[kind, mixin] = type(kind.__name__, (mixin, kind), names)
    return _CLASSES[kind, mixin]


def _mixed_again(kind: type, mixin: type) -> Any:
    return object.__new__(_mixed(kind, mixin))
