"""Find runs and their models by name, and list them."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import QuintainError, RunError, UnknownNameError
from ..models.hf import check_folder
from .checkpoint import best
from .recipe.load import label, read_toml
from .run_folder import RunFolder, no_run
from .storage import abandoned, lock_owner

State = Literal["preparing", "running", "finished", "stopped", "crashed"]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A row of ``quintain runs``.

    A ``crashed`` run is one whose process was killed; ``changed`` is in seconds since 1970; ``fault`` says why a folder
    cannot be read.
    """

    name: str
    path: Path
    state: State
    model: str = ""
    environments: tuple[str, ...] = ()
    step: int = 0
    steps: int = 0
    accuracy: float | None = None
    changed: float = 0.0
    fault: str = ""


def list_runs(folder: str | Path) -> list[RunInfo]:
    """The runs in *folder*, most recently changed first. A damaged run is a row with its fault."""
    paths = [p.parent for p in Path(folder).glob("*/recipe.toml")]
    return sorted(map(_info, paths), key=lambda r: (-r.changed, r.name))


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


def _info(path: Path) -> RunInfo:
    state: State = "stopped"
    changed = 0.0
    try:
        changed = max(p.lstat().st_mtime for p in path.iterdir())
        if owner := lock_owner(path / "run.lock"):
            state = "preparing" if owner.endswith("\npreparing") else "running"
        elif abandoned(path / "run.lock"):
            state = "crashed"
        folder = RunFolder(path, lock=False)
        recipe, metrics = tomllib.loads(folder.recipe()), folder.metrics()
        accuracies = [float(m["held_out.accuracy"]) for m in metrics if m.get("held_out.accuracy") is not None]
        return RunInfo(
            name=path.name,
            path=path,
            state="finished" if folder.summary() is not None and not owner else state,
            model=str(recipe.get("model", {}).get("name", "")),
            environments=tuple(label(str(e.get("use"))) for e in recipe.get("environments", [])),
            step=metrics[-1]["step"] if metrics else 0,
            steps=int(recipe.get("run", {}).get("steps", 0)),
            accuracy=accuracies[-1] if accuracies else None,
            changed=changed,
        )
    except Exception as e:  # noqa: BLE001 - anybody may have edited the files: what they raise concerns this row alone
        fault = str(e) if isinstance(e, QuintainError) else f"{type(e).__name__}: {e}"
        return RunInfo(name=path.name, path=path, state=state, changed=changed, fault=fault.split("\n")[0])
