"""The pictures of all runs, each once, in files that are named by their digest."""

from __future__ import annotations

import hmac
import os
import secrets
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from PIL import Image

from quintain.store import cache_folder

from .files import Picture, PictureError, StoreError, decode, digest_of

SHORT = 12
"""Digits of a digest in the id of a token. Two pictures that begin alike are refused."""

TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp"}
"""Of media, by the endings of files."""


def folder() -> Path:
    """Return the folder of the store: ``pictures`` in the cache, which ``QUINTAIN_CACHE`` names."""
    return cache_folder() / "pictures"


def put(picture: Picture) -> None:
    """Store *picture*, unless it is there.

    Raises:
        PictureError: another picture has the same first digits.
        StoreError: the folder cannot be written.
    """
    if _is_stored(picture.digest):
        return
    target = folder() / picture.digest[:2] / f"{picture.digest}{picture.ending}"
    try:
        # Whole or not there, but not waited for until it is on the disk: thousands are written when a
        # run begins, and a file is compared with its digest whenever it is read.
        os.replace(_written(target.parent, picture.data), target)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        _is_stored(picture.digest)
    except PictureError:  # stored by another process since: one of the two sees the other
        target.unlink(missing_ok=True)
        raise


def _is_stored(digest: str) -> bool:
    """Return whether the picture *digest* is stored.

    Raises:
        PictureError: another picture has the same first digits.
    """
    found = {path.stem for path in _files(digest[:SHORT])}
    if others := found - {digest}:
        raise PictureError(
            f"two pictures have digests that begin with {digest[:SHORT]}, which happens once "
            f"in 10 million million pairs; change one pixel of {digest} or {others.pop()}"
        )
    return bool(found)


def _written(place: Path, data: bytes) -> str:
    """Return the path of a new file in *place* with *data*, which only its owner reads."""
    place.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=place, prefix=".", delete=False) as file:
        file.write(data)
    return file.name


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be stored: {error}; name a folder that can be written in QUINTAIN_CACHE"
    )


def signature(text: str, *, new: bool = True) -> str:
    """Return 20 hexadecimal digits that prove that *text* was written here: they are made with a
    secret of the store. Empty if it has none, unless a *new* one is made.

    Raises:
        StoreError: the folder of the store cannot be written.
    """
    if not new and not (folder() / "secret").exists():
        return ""
    return hmac.new(_secret(folder() / "secret"), text.encode(), "sha256").hexdigest()[:20]


@lru_cache(maxsize=8)
def _secret(path: Path) -> bytes:
    """Return the content of *path*, which is made of random bits if there is none."""
    try:
        if not path.exists():
            new = _written(path.parent, secrets.token_bytes(32))
            with suppress(FileExistsError):  # another process was first, and its secret counts
                os.link(new, path)
            os.unlink(new)
        return path.read_bytes()
    except OSError as error:
        raise _unwritable(path, error) from error


def stored(digest: str, place: Path | None = None) -> Image.Image:
    """Return the pixels, RGB, of the picture whose digest begins with *digest*, of `SHORT` digits or
    more, in the folder *place*, by default that of the store.

    Raises:
        PictureError: there is none, or its file has changed.
    """
    return _read(file_of(digest, place))[0]


def data_url(digest: str) -> str:
    """Return the file of the picture *digest* as a ``data:`` URL; arguments and errors as of `get`."""
    path = file_of(digest)
    return f"data:{TYPES[path.suffix]};base64,{b64encode(_read(path)[1]).decode()}"


def _read(path: Path) -> tuple[Image.Image, bytes]:
    """Return the pixels of the file *path*, and its content."""
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
    return image, data


def file_of(digest: str, place: Path | None = None) -> Path:
    """Return the file of the picture whose digest begins with *digest*, of `SHORT` digits or more, in
    the folder *place*, by default that of the store.

    Raises:
        PictureError: there is none.
    """
    path = next(_files(digest, place), None)
    if path is None:
        raise PictureError(
            f"there is no picture {digest} in {place or folder()}; name the cache that the run began "
            "with in QUINTAIN_CACHE, or make the tasks again"
        )
    return path


def _files(digest: str, place: Path | None = None) -> Iterator[Path]:
    return ((place or folder()) / digest[:2]).glob(f"{digest}*")
