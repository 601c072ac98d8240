"""What a key keeps on disk, and what goes when that is too much."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from ..errors import ApiError
from .adapters import AdapterSpec
from .journal import Effect, Journal

__all__ = ["WITH_MOMENTS", "Disk"]

WITH_MOMENTS = 3
"""Sizes of an adapter that its weights and both moments of its optimizer have."""
GIB = 2**30


class Disk:
    """The bytes of each key: its checkpoints, the samplers that no list shows, and of each adapter that
    trains as much as its file takes with the optimizer's state.

    Args:
        size_of: bytes of an adapter's weights.
        most: bytes of one key.
    """

    def __init__(self, journal: Journal, size_of: Callable[[AdapterSpec], int], most: int) -> None:
        self._journal, self._size_of, self._most = journal, size_of, most

    def room(self, owner: str, size: int) -> tuple[list[Effect], list[str]]:
        """Make room for *size* bytes more: return what forgets, and the files of, the checkpoints of
        *owner* whose time is over, and then its oldest samplers without a name, as many as it takes.

        Raises:
            ApiError: 403, it has no room even without these.
        """
        one, every = self._journal.one, self._journal.all
        models = every(
            "SELECT spec FROM model WHERE owner = ? AND unloaded = 0 AND spec != ''", owner
        )
        sizes = [self._size_of(AdapterSpec(**json.loads(row["spec"]))) for row in models]
        named = one("SELECT total(bytes) AS n FROM checkpoint WHERE owner = ?", owner)["n"]
        temporary = "owner = ? AND path IS NULL AND file != ''"
        samplers = every(f"SELECT id, file FROM sampler WHERE {temporary} ORDER BY rowid", owner)
        over = every(
            "SELECT path, file, bytes FROM checkpoint WHERE owner = ? AND expires < ?",
            owner,
            time.time(),
        )
        found = [("checkpoint", "path", r["path"], r["file"], r["bytes"]) for r in over]
        found += [("sampler", "id", r["id"], r["file"], self._bytes(r["file"])) for r in samplers]
        kept = WITH_MOMENTS * sum(sizes) + named
        missing = kept + sum(self._bytes(r["file"]) for r in samplers) + size - self._most
        effects: list[Effect] = []
        files = []
        while missing > 0 and found:
            table, key, name, file, freed = found.pop(0)
            effects.append((f"DELETE FROM {table} WHERE {key} = ?", (name,)))
            files.append(file)
            missing -= freed
        if missing > 0:
            message = (
                f"this key may keep {self._most / GIB:.3g} GiB: {named / GIB:.3g} are checkpoints, "
                f"{(kept - named) / GIB:.3g} the state of {len(sizes)} adapters that train, and "
                f"{size / GIB:.3g} more were to be written. Delete checkpoints, finish sessions, or "
                "start the server with more --disk"
            )
            raise ApiError(403, "too_much_disk", message)
        return effects, files

    def _bytes(self, file: str) -> int:
        path = self._journal.folder / file
        return path.stat().st_size if path.is_file() else 0
