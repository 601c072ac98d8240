"""Sources of the model to train: components of the kind ``model``; core's own is ``hf``, for
Hugging Face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..console.screen import Screen
from ..models.load import LoadedModel, load_model
from ..models.paper import module_on_paper
from ..registry.binding import bind
from ..services.manager import Choice, needed_by
from ..store.runs import source_named
from .resolve import EnvironmentSpec, is_model_source, load_subclass
from .tables import Recipe


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The request of a run to a model source.

    Attributes:
        name: ``model.name`` of the recipe.
        seed: of the run.
        device: of the module; ``auto`` is the GPU if there is one.
        dtype: of the learner's weights, ``float32``, ``float64`` or ``bfloat16``.
        lora: fields of `peft.LoraConfig`, to train adapters instead of the weights.
        specs: the environments of the run, in order, without their services.
        services: the service of each slot that the environments need.
        screen: for progress and notes.
    """

    name: str
    seed: int
    device: str
    dtype: str
    lora: Mapping[str, Any] | None
    specs: Sequence[EnvironmentSpec]
    services: Mapping[str, Choice]
    screen: Screen

    @classmethod
    def of(
        cls, recipe: Recipe, screen: Screen, specs: Sequence[EnvironmentSpec] | None = None
    ) -> ModelRequest:
        """Return the request of *recipe*; *specs* are resolved from its environments by default."""
        if specs is None:
            specs = [EnvironmentSpec.of(table) for table in recipe.environments]
        model = recipe.model
        return cls(
            name=model.name,
            seed=recipe.run.seed,
            device=model.device,
            dtype="float64" if model.dtype == "float64" else "float32",
            lora=model.lora.model_dump() if model.lora else None,
            specs=specs,
            services=services_for(specs, recipe.services),
            screen=screen,
        )

    def load_model(self, path: str | Path, name: str = "") -> LoadedModel:
        """Load a model from a folder or the hub, with the settings of the request; the screen shows
        *name*.

        Raises:
            UsageError: the model cannot be loaded.
        """
        self.screen.note(f"loading {name or self.name}")
        return load_model(path, device=self.device, dtype=self.dtype, lora=self.lora)


def services_for(
    specs: Sequence[EnvironmentSpec], services: Mapping[str, Choice]
) -> Mapping[str, Choice]:
    """Return those of *services* that the environments need: others may need the learner, which
    does not exist yet.
    """
    slots = {slot for spec in specs for slot in spec.slots}
    return needed_by(slots, services)


class ModelSource(ABC):
    """Provides the model to train. Its constructor takes the settings of ``[model.start] args``."""

    @classmethod
    def of(cls, recipe: Recipe) -> ModelSource:
        """Return the source of the recipe's model, with its settings: the component of that name,
        or ``hf``.

        Settings apply only to a component: a recipe may keep those of the default model if
        ``--model`` replaces it.

        Raises:
            UnknownNameError: the component is in a plugin that is not installed; the message names
                it.
            BindingError: a setting is invalid.
            PluginError: the component is not a model source.
        """
        name = recipe.model.name
        if not is_model_source(name):
            name, args = "quintain/hf", {}
        else:
            args = recipe.model.start.args
        component = load_subclass("model", source_named(name) or name, ModelSource)
        source: ModelSource = bind(component, args, who="[model.start]")
        return source

    @abstractmethod
    def load(self, request: ModelRequest) -> LoadedModel:
        """Return the model that reinforcement learning begins with.

        Raises:
            UsageError: the source cannot provide the model.
            StorageError: no room to save it.
        """

    def remarks(self, request: ModelRequest) -> Sequence[str]:
        """Return what ``--dry-run`` says of the model, which is not loaded; nothing by default."""
        return ()

    def folder(self, request: ModelRequest) -> Path | None:
        """Return the folder of the model that `load` returns, which may train it first; ``None``,
        the default, if it is in none.

        Raises:
            UsageError: the source cannot provide the model.
            StorageError: no room to save it.
        """
        return None

    def named(self, name: str) -> str | None:
        """Return the folder or the id of the model *name* of a recipe with these settings, before it
        is loaded; ``None`` where that depends on the environments.
        """
        folder = self.folder_named(name)
        return None if folder is None else str(folder)

    def on_paper(self, name: str, lora: Mapping[str, Any] | None) -> Any:
        """Return the module that `load` returns of the model that `named` named, without weights;
        ``None`` if its configuration cannot be had.

        Raises:
            UsageError: the settings of the adapters are refused.
        """
        return module_on_paper(name, lora)

    @classmethod
    def folder_named(cls, name: str) -> Path | None:
        """Return the folder of the model *name* where it depends on no environment, so that every
        command can name it; ``None``, the default, where it does.

        Raises:
            UsageError: it is not here yet; the message has the command that gets it.
            StorageError: no room to save it.
        """
        return None

    @classmethod
    def bring(cls, name: str, say: Callable[[str], None], *, quiet: bool = False) -> Path | None:
        """Return the folder of the model *name* as `folder_named` does, after a download where it is
        not here and the source knows one.

        Args:
            say: gets a line for each part of the work.
            quiet: show no progress beside these lines.

        Raises:
            UsageError: it cannot be had.
            PluginError: what reads it is not installed.
            StorageError: no room to save it.
        """
        return cls.folder_named(name)

    def load_base(self, request: ModelRequest) -> LoadedModel:
        """Return the model before any training by this source, for `quintain sft`; the same as
        `load` by default.
        """
        return self.load(request)


class HFModel(ModelSource):
    """A folder in Hugging Face format, or a model of the hub."""

    def load(self, request: ModelRequest) -> LoadedModel:
        return request.load_model(request.name)
