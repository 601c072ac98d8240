"""Copies of what the ranks have made, from which ranks that start again continue."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import IO, Any, Self

from quintain.errors import UsageError

log = logging.getLogger(__name__)

SLOTS = 2
"""Copies of a rank: the next one is written while the last one stands."""
REFERENCE = "reference"
EVERY = 10
"""Updates between two copies, where the folder of copies has room."""
SHARE = 0.5
"""Of the free bytes of that folder, which copies take at most unless the recipe asks for them."""


@dataclass(frozen=True)
class Folder:
    """The folder of temporary files: bytes that are *free* there, and whether it is *in_memory*, of
    which it then takes the bytes.
    """

    path: Path
    free: int
    in_memory: bool

    @classmethod
    def here(cls) -> Self:
        """Return that of this process."""
        path = Path(tempfile.gettempdir()).resolve()
        free = shutil.disk_usage(path).free
        in_memory = is_in_memory(path, Path("/proc/mounts").read_text())
        if in_memory:
            lines = dict(x.split(":") for x in Path("/proc/meminfo").read_text().splitlines())
            free = min(free, 1024 * int(lines["MemAvailable"].split()[0]))
        return cls(path, free, in_memory)


def is_in_memory(path: Path, mounts: str) -> bool:
    """Return whether *path* is on a file system in memory, by *mounts*, the text of
    ``/proc/mounts``.
    """
    kinds = {Path(place): kind for _, place, kind, *_ in map(str.split, mounts.splitlines())}
    return next((kinds[p] for p in (path, *path.parents) if p in kinds), "") in ("tmpfs", "ramfs")


def updates_between(every: int | None, size: int) -> int | None:
    """Return how many updates are between two copies of *size* bytes: *every* of the recipe, by
    default `EVERY` where the folder has room; ``None`` makes no copies, and a warning says so.

    Raises:
        UsageError: the recipe asks for copies, and there is no room.
    """
    folder, needed = Folder.here(), SLOTS * size
    if needed <= (SHARE if every is None else 1) * folder.free:
        return every or EVERY
    kind = ", which is host memory (tmpfs)" if folder.in_memory else ""
    room = (
        f"learner fsdp: {SLOTS} copies of the ranks' weights and moments take {needed / 1e9:,.1f} "
        f"GB, and {folder.free / 1e9:,.1f} GB are free in {folder.path}{kind}"
    )
    if every is not None:
        raise UsageError(
            f"{room}: set TMPDIR to a folder with room, or learner.args.restarts = 0 for no copies"
        )
    log.warning(
        "%s. No copies are made, so a rank that is lost ends the run: continue it with --resume. "
        "Set TMPDIR to a folder with room, or learner.args.copy_every",
        room,
    )
    return None


class Spare:
    """Files of one rank that have no name, so that nothing is left of them when all that have them
    open have ended: two copies of its part of weights and moments, and one of its reference model.
    """

    def __init__(self, files: Mapping[int | str, IO[bytes]] | None = None) -> None:
        self._files = files or {
            key: tempfile.TemporaryFile()  # noqa: SIM115 - open until `close`
            for key in (*range(SLOTS), REFERENCE)
        }

    def __reduce__(self) -> Any:
        handles = {key: reduction.DupFd(file.fileno()) for key, file in self._files.items()}
        return _opened, (handles,)

    def __getitem__(self, slot: int | str) -> IO[bytes]:
        """Return the file of *slot*, at its beginning."""
        file = self._files[slot]
        file.seek(0)
        return file

    def file(self, slot: int | str) -> IO[bytes]:
        """Return the file of *slot*, where it is."""
        return self._files[slot]

    def close(self) -> None:
        """Close the files, so that nothing is left of them here."""
        for file in self._files.values():
            with suppress(OSError):  # what a full disk does not take
                file.close()


def _opened(handles: dict[int | str, Any]) -> Spare:
    return Spare({key: os.fdopen(handle.detach(), "w+b") for key, handle in handles.items()})
