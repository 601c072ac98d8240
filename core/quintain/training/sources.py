"""Where the model that a run trains comes from: components of the kind ``model``, and core's own for Hugging Face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PluginError
from ..models.load import LoadedModel, load_model
from ..registry.binding import bind
from ..registry.lookup import current
from ..services.manager import Choice
from .recipe.tables import Recipe
from .resolve import EnvironmentSpec, is_model_source, resolve_environment_table
from .screen import Screen


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """What a run tells a model source.

    Attributes:
        name: ``model.name`` of the recipe.
        seed: of the run.
        device: to put the module on; ``auto`` is the GPU where there is one.
        dtype: of the learner's master weights, ``float32`` or ``float64``.
        lora: fields of `peft.LoraConfig`, where adapters train instead of the weights.
        specs: the environments of the run, in order, without their services.
        services: what fills each service slot.
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
    def of(cls, recipe: Recipe, screen: Screen, specs: Sequence[EnvironmentSpec] | None = None) -> ModelRequest:
        """The request of *recipe*; *specs* are those of its environments where they are not given."""
        table = recipe.model
        return cls(
            name=table.name,
            seed=recipe.run.seed,
            device=table.device,
            dtype="float64" if table.dtype == "float64" else "float32",
            lora=table.lora.model_dump() if table.lora else None,
            specs=[resolve_environment_table(t) for t in recipe.environments] if specs is None else specs,
            services=recipe.services,
            screen=screen,
        )

    def load_model(self, path: str | Path) -> LoadedModel:
        """Load the model of a folder, or of the hub, as the request says.

        Raises:
            UsageError: it cannot be loaded.
        """
        self.screen.phase(f"loading {self.name}")
        return load_model(path, device=self.device, dtype=self.dtype, lora=self.lora)


class ModelSource(ABC):
    """Brings the model that a run trains. Its constructor takes the settings of ``[model.start] args``."""

    @abstractmethod
    def load(self, request: ModelRequest) -> LoadedModel:
        """The model that reinforcement learning begins with.

        Raises:
            UsageError: the source cannot bring it.
            StorageError: there is no room for it.
        """

    def load_base(self, request: ModelRequest) -> LoadedModel:
        """The model before any training by this source, for `quintain sft`; the same as `load` by default."""
        return self.load(request)


class HFModel(ModelSource):
    """A folder in Hugging Face format, or a model of the hub."""

    def load(self, request: ModelRequest) -> LoadedModel:
        return request.load_model(request.name)


def model_source(recipe: Recipe) -> ModelSource:
    """The source of the recipe's model, with its settings: the component of that name, or ``hf``.

    Settings are for a component alone: a recipe keeps those of the default model where ``--model`` names another one.

    Raises:
        UnknownNameError: the component is in a plugin that is not installed; says which.
        BindingError: a setting does not fit.
        PluginError: the component is no model source.
    """
    name = recipe.model.name
    if not is_model_source(name):
        name, args = "hf", {}
    else:
        args = recipe.model.start.args
    component = current().load("model", name)
    if not (isinstance(component, type) and issubclass(component, ModelSource)):
        raise PluginError(f"model {name!r} is {component!r}; expected a subclass of quintain.training.ModelSource")
    source: ModelSource = bind(component, args, who="[model.start]")
    return source
