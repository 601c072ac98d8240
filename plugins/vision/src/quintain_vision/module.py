"""A vision-language module of transformers whose table of embeddings knows the tokens of pictures.

The module stays one of transformers, with its names and files. Whoever turns ids into hidden states
asks this table, be it the module's own forward, the embedded engine or a layout of the learner. For
the id of a token of a picture it returns what the vision tower computes there.

Shapes: T ids of any shape, N tokens of a picture, D hidden size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from quintain.interfaces import changes_of
from quintain.models import PICTURE_PLACES, PICTURE_TOKENS, body_of

from .files import PictureError
from .processor import PictureProcessor
from .tokens import digits_of, key_of

CACHE_BYTES = 2**28
"""Memory for the features of pictures that are computed without a gradient."""
LANGUAGE = ("language_model", "text_model")
"""Names of the language model in the body of a module."""


class SeesPictures:
    """Mixed into a class of transformers by `seeing`.

    Attributes:
        processor: of the model.
    """

    processor: ClassVar[PictureProcessor]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        module: Any = self
        table = module.get_input_embeddings()
        table.__class__ = _table_class(type(table))
        # no part of the table, of which the module would be a part
        object.__setattr__(table, "owner", module)
        object.__setattr__(table, "cache", FeatureCache())

    def save_pretrained(self, folder: str | Path, *args: Any, **options: Any) -> None:
        """Save as transformers does, with the files of the processor."""
        cast(Any, super()).save_pretrained(folder, *args, **options)
        self.processor.save(Path(folder))


def seeing(kind: type, processor: PictureProcessor) -> Any:
    """Return *kind*, a class of transformers, with `SeesPictures`; its name, which is saved, stays."""
    return type(
        kind.__name__, (SeesPictures, kind), {"processor": processor, "__module__": kind.__module__}
    )


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
        """Return hidden states [T, D] of *ids*, text and pictures."""
        rows = cast(Any, super()).forward
        if ids.is_cuda and torch.cuda.is_current_stream_capturing():
            return cast(Tensor, rows(ids))  # steps of decoding, which append no picture
        seen = ids >= PICTURE_TOKENS
        if not seen.any():
            return cast(Tensor, rows(ids))
        hidden: Tensor = rows(ids.masked_fill(seen, 0))
        places = ids[seen]
        firsts, which = torch.unique(places - places % PICTURE_PLACES, return_inverse=True)
        features = [self._features(key_of(first)) for first in firsts.tolist()]
        begins = torch.tensor([0, *(len(part) for part in features)]).cumsum(0)[:-1]
        index = begins.to(ids.device)[which] + places % PICTURE_PLACES
        chosen = torch.cat(features).to(hidden.dtype).index_select(0, index)
        return hidden.masked_scatter(seen.unsqueeze(-1), chosen)

    def _features(self, key: int) -> Tensor:
        """Return the features [N, D] of the picture with *key*: with a gradient if one is computed and
        the tower trains, else from the cache.
        """
        parts = [*tower_parts(self.owner).values()]
        parameters = [p for part in parts for p in part.parameters()]
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return self._computed(key)
        device = parameters[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        # Weights change in place: an update adds to the version of each.
        counts = [changes_of(cast(Any, SimpleNamespace(module=part))) for part in parts]
        state = (autocast, *map(id, parameters), *counts)
        features = self.cache.get(key, state)
        if features is None:
            # Made in inference mode, it could be part of no later pass with a gradient.
            with torch.inference_mode(False), torch.no_grad():
                features = self._computed(key)
            self.cache.put(key, features)
        return features

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
        pooled = body.get_image_features(**inputs, return_dict=True).pooler_output
        features: Tensor = torch.cat([*pooled])
        expected = self.owner.processor.tokens(digits_of(key))
        if len(features) != expected:
            raise PictureError(
                f"picture {digits_of(key)} has {len(features)} features for {expected} tokens: the "
                "files of the processor are of another model"
            )
        return features


_CLASSES: dict[type, type] = {}


def _table_class(kind: type) -> type:
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (_PictureTable, kind), {"__module__": kind.__module__})
    return _CLASSES[kind]
