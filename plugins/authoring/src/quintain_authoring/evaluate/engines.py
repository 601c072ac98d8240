"""The model and the engine that a command line names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quintain.cli import sigterm_as_ctrl_c
from quintain.console import for_terminal
from quintain.errors import UsageError

from .. import arguments_of

if TYPE_CHECKING:
    from quintain import Engine
    from quintain.registry import Signature


def folder_of_model(
    engine: str, model: str, environment: str, args: Sequence[str], like: str | None = None
) -> tuple[str, str]:
    """Return what *engine* gets as its model where the command line names *model*, and the system
    message that this model was trained with, empty if there is none.

    Args:
        engine: name or URL; a server has its own names of models, and a control takes none.
        environment, args: what a model source depends on, unless a run is given.
        like: that run.

    Raises:
        UsageError: *model* is a source without a folder, or a folder without a model.
    """
    from quintain.models import check_folder
    from quintain.recipe import is_model_source
    from quintain.registry import current, signature_of
    from quintain.store import checkpoint_note, model_named

    if not model or _serves(engine):
        return model, ""
    if not is_model_source(model):
        check_folder(model)  # before torch is imported
    if engine.startswith("@") or not _takes_model(signature_of(current().load("engine", engine))):
        return model, ""
    path, trained_with = (
        (_folder_of_source(model, environment, like, args), "")
        if is_model_source(model)
        else model_named(model)
    )
    if note := checkpoint_note(path):
        click.echo(f"{model}: {note}", err=True)
    return path, trained_with


def engine_of(name: str, model: str, pairs: Sequence[str]) -> Engine:
    """Return the engine *name*, not started.

    Args:
        name: of a component, or the URL of a server with OpenAI's API.
        pairs: ``key=value``, its settings.

    Raises:
        UsageError: it takes no model, or lacks one.
    """
    from quintain import Engine
    from quintain.registry import bind, current, short_name, signature_of

    url = name if name.startswith(("http://", "https://")) else ""
    component = current().load("engine", "openai" if url else name)
    args = arguments_of(pairs, component, "--engine-arg")
    if url:
        path = url.partition("//")[2].partition("/")[2]
        args["base_url"] = url if path.strip("/") else url.rstrip("/") + "/v1"
    takes_model = _takes_model(signature_of(component))
    if model and not takes_model:
        raise UsageError(f"the engine {name!r} takes no model")
    if model:
        args["model"] = model
    elif takes_model and not _serves(name) and "model" not in args:
        raise UsageError(
            f"the engine {short_name(name)!r} needs a model: --model FOLDER, RUN or a Hugging Face "
            f"id"
        )
    shown = "openai" if url else short_name(name)  # a URL may have a password
    client = bind(component, args, {}, who=f"engine {shown!r}")
    if not isinstance(client, Engine):
        raise UsageError(
            f"{shown!r} is a {type(client).__name__}; expected an engine (`quintain list engines`)"
        )
    return client


def _serves(engine: str) -> bool:
    """Return whether *engine* is a server, which has its own names of models."""
    return engine == "openai" or engine.startswith(("http://", "https://"))


def _folder_of_source(name: str, environment: str, like: str | None, args: Sequence[str]) -> str:
    """Return the folder of the model that `quintain train` begins with where ``model.name`` is
    *name*, a model source.

    It depends on the environment: that of the run *like*, or *environment* with *args*.

    Raises:
        UsageError: the source has no folder.
    """
    from quintain.cli import recipe_for
    from quintain.recipe import ModelRequest, ModelSource, Recipe
    from quintain.store import RunFolder, find_run

    if like is None:
        recipe = recipe_for(environment, [f"environments.0.args.{pair}" for pair in args], name)
    else:
        recipe = Recipe.parse(RunFolder(find_run(like), lock=False).recipe())
        recipe = recipe.replace({"model.name": name})
    with for_terminal() as screen, sigterm_as_ctrl_c():
        folder = ModelSource.of(recipe).folder(ModelRequest.of(recipe, screen))
    if folder is None:
        raise UsageError(f"the model source {name!r} saves no folder that can be evaluated")
    return str(folder)


def _takes_model(signature: Signature) -> bool:
    return "model" in {field.name for field in signature.fields}
