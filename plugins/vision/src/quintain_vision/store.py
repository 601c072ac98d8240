"""The pictures of all runs, each once, in files that are named by their digest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

from PIL import Image

from quintain.store import cache_folder

from .files import Picture, PictureError, decode, digest_of

SHORT = 12
"""Digits of a digest in the id of a token. Two pictures that begin alike are refused."""


def folder() -> Path:
    """Return the folder of the store: ``pictures`` in the cache, which ``QUINTAIN_CACHE`` names."""
    return cache_folder() / "pictures"


def put(picture: Picture) -> None:
    """Store *picture*, unless it is there.

    Raises:
        PictureError: another picture has the same first digits, or the folder cannot be written.
    """
    place = folder() / picture.digest[:2]
    others = {path.stem for path in _files(picture.digest[:SHORT])}
    if picture.digest in others:
        return
    if others:
        raise PictureError(
            f"two pictures have digests that begin with {picture.digest[:SHORT]}, which happens once "
            f"in 10 million million pairs; change one pixel of {picture.digest} or {others.pop()}"
        )
    target = place / f"{picture.digest}{picture.ending}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Whole or not there, but not waited for until it is on the disk: thousands are written when a
        # run begins, and a file is compared with its digest whenever it is read.
        with NamedTemporaryFile(dir=place, prefix=".", delete=False) as file:
            file.write(picture.data)
        os.replace(file.name, target)
    except OSError as error:
        raise PictureError(
            f"picture {target} cannot be stored: {error}; name a folder that can be written in "
            "QUINTAIN_CACHE"
        ) from error


def get(digest: str) -> Image.Image:
    """Return the pixels, RGB, of the picture whose digest begins with *digest*, of `SHORT` digits or
    more.

    Raises:
        PictureError: there is none, or its file has changed.
    """
    path = next(_files(digest), None)
    if path is None:
        raise PictureError(
            f"there is no picture {digest} in {folder()}; name the cache that the run began "
            "with in QUINTAIN_CACHE, or make the tasks again"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PictureError(f"picture {path} cannot be read: {error}") from error
    image, _ = decode(data, str(path))
    if digest_of(image) != path.stem:
        raise PictureError(
            f"{path} is not the picture that was stored, or this Pillow decodes it in another way; "
            "remove the file and make the tasks again"
        )
    return image


def _files(digest: str) -> Iterator[Path]:
    return (folder() / digest[:2]).glob(f"{digest}*")
