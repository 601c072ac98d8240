"""Find runs and their models by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ..errors import RunError, UnknownNameError, UsageError
from ..models.hf import check_folder
from ..registry.known import known_plugins
from ..registry.lookup import current
from .checkpoint import Checkpoint, best
from .run_folder import RunFolder, no_run
from .toml import read_toml


def find_run(run: str | Path, folder: str | Path = "runs") -> Path:
    """Return the run folder *run*: a path, or a name in *folder*.

    Raises:
        UnknownNameError: there is none; the message has the nearest name.
    """
    for path in (Path(run), Path(folder) / run):
        if os.path.isfile(path / "recipe.toml"):  # of any name
            return path
    raise no_run(str(run), Path(folder))


class NamedModel(NamedTuple):
    """Where a model is, and how it was trained.

    Attributes:
        path: path or id, for `load_model`.
        system: the system message in training; empty if its recipe has none.
    """

    path: str
    system: str


def model_named(name: str, folder: str | Path = "runs") -> NamedModel:
    """Find the model *name*: a run (its best checkpoint, or the last), a checkpoint, a folder with a
    model, the name of a model source, a file that one reads, or a Hugging Face id.

    Raises:
        RunError: the run has no checkpoint yet, its recipe is damaged, or a file of the model is
            not as it was saved.
        UsageError: the name is that of a model source whose model depends on an environment, or is
            not here yet.
    """
    try:
        path = find_run(name, folder)
    except UnknownNameError as e:
        if source := source_named(name):
            if folder := current().load("model", source).folder_named(name):
                return NamedModel(str(folder), "")
            raise UsageError(
                f"{name!r} is no model of its own but trained for an environment: `quintain start "
                f"ENVIRONMENT` prints its folder, `quintain eval ENVIRONMENT --model {name}` "
                "measures it"
            ) from e
        inside, configs = Path(name) / "model", ("config.json", "adapter_config.json")
        if "/" not in name and not os.path.exists(name):
            hub = (
                f"for a model of the hub write owner/model, also where its page shows {name!r} "
                f"alone"
            )
            raise UnknownNameError(f"{e}; no folder of that name either; {hub}") from None
        check_folder(name)
        is_checkpoint = any(os.path.isfile(inside / config) for config in configs)
        around = Path(name) if is_checkpoint else Path(name).parent
        Checkpoint(path=around, step=0).verify_model()
        return NamedModel(str(inside) if is_checkpoint else name, "")
    run = RunFolder(path, lock=False)
    checkpoint = best(run)
    if checkpoint is None:
        raise RunError(
            f"run {run.name!r} has no checkpoint yet; `quintain train --resume {run.name}` "
            f"continues it"
        )
    checkpoint.verify_model()
    try:
        rows = read_toml(run.recipe()).get("environments", [])
        system = str(rows[0].get("system", "")) if len(rows) == 1 else ""
        return NamedModel(str(checkpoint.model), system)
    except (ValueError, TypeError, AttributeError) as e:
        raise RunError(
            f"the recipe of run {run.name!r} is damaged: {e}; --model {checkpoint.model} needs none"
        ) from e


def source_named(name: str) -> str:
    """Return the model source of the model *name*: the component of that name, or for a file the one
    that is called like its suffix; empty for a folder or an id of the hub.
    """
    if _is_source(name):
        return name
    suffix = Path(name).suffix.removeprefix(".")
    return suffix if _is_source(suffix) and os.path.isfile(os.path.expanduser(name)) else ""


def _is_source(name: str) -> bool:
    owner, _, bare = name.rpartition("/")
    distribution = known_plugins().get(("model", bare))
    known = distribution is not None and owner in ("", distribution)
    return known or bool(current().matching(name, "model"))


def free_name(folder: str | Path, stem: str) -> str:
    """Return the first unused name of *stem*-1, *stem*-2, ... in *folder*."""
    used_names = {p.name for p in Path(folder).glob(f"{stem}-*")}
    return next(
        name for i in range(1, len(used_names) + 2) if (name := f"{stem}-{i}") not in used_names
    )
