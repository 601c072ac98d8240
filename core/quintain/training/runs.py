"""Find runs and their models by name."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import RunError, UnknownNameError
from ..models.hf import check_folder
from .checkpoint import best
from .recipe.load import read_toml
from .run_folder import RunFolder, no_run


def find_run(run: str | Path, folder: str | Path = "runs") -> Path:
    """The run folder *run*: a path, or a name in *folder*.

    Raises:
        UnknownNameError: there is none; the message has the nearest name.
    """
    for path in (Path(run), Path(folder) / run):
        if os.path.isfile(path / "recipe.toml"):  # of any name
            return path
    raise no_run(str(run), Path(folder))


def model_named(name: str, folder: str | Path = "runs") -> tuple[str, str]:
    """The path or id of the model *name*, for `load_model`, and its system message in training.

    *name* is a run (its best checkpoint, or the last), a checkpoint, a folder with a model, or a Hugging Face id. The
    message is empty if the recipe has none.

    Raises:
        RunError: the run has no checkpoint yet, or its recipe is damaged.
    """
    try:
        path = find_run(name, folder)
    except UnknownNameError as e:
        inside = Path(name) / "model"
        if "/" not in name and not os.path.exists(name):
            raise UnknownNameError(f"{e}; a model of the Hugging Face hub is named owner/model") from None
        check_folder(name)
        return (str(inside) if os.path.isfile(inside / "config.json") else name), ""
    run = RunFolder(path, lock=False)
    checkpoint = best(run)
    if checkpoint is None:
        raise RunError(f"run {run.name!r} has no checkpoint yet; `quintain train --resume {run.name}` continues it")
    try:
        rows = read_toml(run.recipe()).get("environments", [])
        return str(checkpoint.model), str(rows[0].get("system", "")) if len(rows) == 1 else ""
    except (ValueError, TypeError, AttributeError) as e:
        raise RunError(f"the recipe of run {run.name!r} is damaged: {e}; --model {checkpoint.model} needs none") from e


def free_name(folder: str | Path, stem: str) -> str:
    """The first unused name of *stem*-1, *stem*-2, ... in *folder*."""
    taken = {p.name for p in Path(folder).glob(f"{stem}-*")}
    return next(name for i in range(1, len(taken) + 2) if (name := f"{stem}-{i}") not in taken)
