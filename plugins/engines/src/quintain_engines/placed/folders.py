"""Folders on their way to another machine."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import IO


def pack_folder(folder: Path) -> bytes:
    """Return what *folder* holds, as a tar archive."""
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as files:
            for name in sorted(os.listdir(folder)):
                files.add(folder / name, arcname=name)
        return packed.getvalue()


def unpack_folder(packed: IO[bytes], folder: str | Path) -> None:
    """Put the files of an archive of `pack_folder` into *folder*.

    Raises:
        tarfile.TarError: it is none, or has a file that does not belong into a folder.
    """
    with tarfile.open(fileobj=packed) as files:
        files.extractall(folder, filter="data")
