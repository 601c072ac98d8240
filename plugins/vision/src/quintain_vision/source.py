"""Vision-language models: how `quintain.models.load_model` reads them, and the model source
``pictures`` with its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn

from quintain.errors import UsageError
from quintain.models import HFTokenizer, LoadedModel
from quintain.recipe import ModelRequest, ModelSource

from .module import LANGUAGE, seeing, tower_parts
from .processor import FAMILIES, PictureProcessor
from .tokenizer import PictureTokenizer

_FROZEN = "quintain_frozen_tower"
"""Key of ``config.json``: only the language model trains, also after the model was saved."""


class PictureModel(ModelSource):
    """A vision-language model of a folder or the hub, with what of it trains."""

    def __init__(self, *, model: str, train: Literal["all", "language"] | None = None) -> None:
        """Choose the *model* and what trains.

        Args:
            model: a folder, or a name on the hub.
            train: ``language`` freezes the vision tower and the projector. Their output is then
                computed once for each picture. ``all`` trains them, also where the folder was saved
                with ``language``. By default, what trains is as the folder says: all, unless it was
                saved with ``language``. With adapters, ``all`` leaves the weights under them as they
                are.
        """
        self._model, self._train = model, train

    def load(self, request: ModelRequest) -> LoadedModel:
        loaded = request.load_model(self._model)
        if not isinstance(loaded.tokenizer, PictureTokenizer):
            raise UsageError(
                f"model {self._model!r} is of no family that sees pictures here "
                f"({', '.join(FAMILIES)}); see docs/pictures.md"
            )
        self._choose(loaded.module, request.lora)
        return loaded

    def named(self, name: str) -> str:
        return self._model

    def on_paper(self, name: str, lora: Mapping[str, Any] | None) -> Any:
        module = super().on_paper(name, lora)
        if module is not None:
            self._choose(module, lora)
        return module

    def _choose(self, module: Any, lora: Any) -> None:
        if self._train == "language":
            freeze(module)
        elif self._train == "all":
            unfreeze(module, weights=lora is None)

    @staticmethod
    def family(name: str, config: Mapping[str, Any]) -> PictureFamily | None:
        """Return how to read the model *name*, a folder or one of the hub, with *config*; ``None`` for
        a family that is not known.
        """
        return PictureFamily(name, config) if config.get("model_type") in FAMILIES else None


class PictureFamily:
    """A `quintain.models.ModelFamily` of models that see pictures."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._processor = PictureProcessor(name, config)
        self.kind = _Reader(self._processor)

    def tokenizer(self, hf: Any, stop_ids: Sequence[int]) -> HFTokenizer:
        """Return the tokenizer of the model, over that of transformers."""
        return PictureTokenizer(hf, self._processor, stop_ids=stop_ids)

    def adapters(self, module: nn.Module, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *settings*, with adapters in the language model alone unless they name modules."""
        if settings.get("exclude_modules") or settings.get("target_modules"):
            return settings
        parts = tower_parts(module).values()
        others = {id(inner) for part in parts for inner in part.modules()}
        names = [name for name, part in module.named_modules() if id(part) in others]
        return {**settings, "exclude_modules": names}


def freeze(module: Any) -> None:
    """Let the language model of *module* train alone, also when it has been saved and is loaded."""
    for part in tower_parts(module).values():
        part.requires_grad_(False)
    setattr(module.config, _FROZEN, True)


def unfreeze(module: Any, *, weights: bool = True) -> None:
    """Undo `freeze`, also for what is saved of *module*.

    Args:
        weights: of vision tower and projector train; not where adapters train in their place.
    """
    if hasattr(module.config, _FROZEN):
        delattr(module.config, _FROZEN)
    if weights:
        for part in tower_parts(module).values():
            part.requires_grad_(True)


class _Reader:
    """Reads modules as ``AutoModelForImageTextToText`` does, in a class that sees pictures."""

    def __init__(self, processor: PictureProcessor) -> None:
        self._processor = processor

    def from_pretrained(self, path: str, **options: Any) -> Any:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(path, local_files_only=True)
        found = self._kind(config).from_pretrained(path, **options)
        _prepare(found[0] if isinstance(found, tuple) else found)
        return found

    def from_config(self, config: Any) -> Any:
        """Return a module of *config* with random weights."""
        module = self._kind(config)(config)
        _prepare(module)
        return module

    def _kind(self, config: Any) -> Any:
        from transformers import AutoModelForImageTextToText

        return seeing(AutoModelForImageTextToText._model_mapping[type(config)], self._processor)


def _prepare(module: Any) -> None:
    """Freeze what of a new *module* is frozen.

    Raises:
        UsageError: its language model has no name that is known.
    """
    if not any(hasattr(module.model, name) for name in LANGUAGE):
        raise UsageError(
            f"{type(module).__name__} has no language model under a name that is known"
        )
    if getattr(module.config, _FROZEN, False):
        freeze(module)
