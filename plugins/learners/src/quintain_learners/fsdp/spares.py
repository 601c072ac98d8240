"""Copies of what the ranks have made, from which ranks that start again continue."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import reduction
from typing import IO, Any

SLOTS = 2
"""Copies of a rank: the next one is written while the last one stands."""
REFERENCE = "reference"


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
