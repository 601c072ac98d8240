"""The folder that a trained model goes to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import StorageError, UsageError

if TYPE_CHECKING:
    from quintain.console import Screen
    from quintain.learning import Learner
    from quintain.models import LoadedModel

    from .report import TuningReport


@contextmanager
def reserved(out: Path | None, parent: Path, source: str) -> Iterator[Path]:
    """Make an empty folder for a model now, so that nobody else takes its name; it goes where it
    stays empty.

    Args:
        out: the folder; ``None`` for ``SOURCE-N`` in *parent*.

    Raises:
        UsageError: there is something at *out*.
        StorageError: it cannot be made.
    """
    from quintain.store import storage_errors

    if out is not None and is_filled(out):
        raise UsageError(f"--out {str(out)!r} is there already; name a new folder, or remove it")
    name = source.partition(":")[2] or source.rstrip("/")
    place = (parent if out is None else out).absolute()
    new_folders = [path for path in (place, *place.parents) if not path.exists()]
    with storage_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        if out is None:
            out = new_folder(parent, Path(name).stem.lower() or "model")
            new_folders.insert(0, out)
    try:
        yield out if out.name not in ("", "..") else out.resolve()
    finally:
        for path in new_folders:
            with suppress(OSError):  # it is filled, or gone
                path.rmdir()


def save(
    folder: Path,
    learner: Learner,
    model: LoadedModel,
    command: str,
    report: TuningReport,
    screen: Screen,
) -> Path:
    """Write a model folder in Hugging Face format; its ``quintain.json`` holds *report* under the
    name of the *command*.

    Returns:
        *folder*, or a new folder beside it where another process has filled it meanwhile:
        ``name-2`` for ``name-1``, ``name-1`` for ``name``.

    Raises:
        StorageError: it cannot be written.
    """
    from quintain.store import save_model

    screen.phase(f"saving {folder}")
    place = folder
    while True:
        try:
            save_model(place, learner, model.tokenizer, {command: report.to_json()})
            break
        except StorageError:
            if not is_filled(place):
                raise
        place = new_folder(folder.parent, re.sub(r"-\d+\Z", "", folder.name))
    if place != folder:
        screen.warn(f"{folder} was filled by somebody else meanwhile; the model is in {place}")
    return place


def is_filled(path: Path) -> bool:
    """Return whether *path* is a file or a folder that is not empty, which a model must not
    replace.
    """
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def new_folder(parent: Path, stem: str) -> Path:
    """Make the first free folder of ``stem-1``, ``stem-2``, ... in *parent*, also where others do
    so at the moment.
    """
    from quintain.store import free_name

    while True:
        path = parent / free_name(parent, stem)
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue
