"""Ids of the tokens of pictures: the digest of the picture and the place of the token in it.

Such an id is far above any vocabulary. Transcripts, caches of prefixes, groups and micro-batches
compare and copy ids, so that the same picture is shared and two pictures never match, without
knowing that there are pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintain.models import PICTURE_PLACES, PICTURE_TOKENS

from .files import PictureError
from .store import SHORT


def ids_of(digest: str, count: int) -> range:
    """Return the ids of the *count* tokens of the picture *digest*.

    Raises:
        PictureError: it has more tokens than there are places.
    """
    if count > PICTURE_PLACES:
        raise PictureError(
            f"picture {digest} has {count:,} tokens; at most {PICTURE_PLACES:,} have ids. Make it "
            "smaller"
        )
    start = PICTURE_TOKENS + int(digest[:SHORT], 16) * PICTURE_PLACES
    return range(start, start + count)


def key_of(token: int) -> int:
    """Return what all tokens of one picture have in common, and those of no other."""
    return token // PICTURE_PLACES


def digits_of(key: int) -> str:
    """Return the first digits of the digest of the picture with *key*."""
    return f"{key - PICTURE_TOKENS // PICTURE_PLACES:0{SHORT}x}"


def runs(ids: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Split *ids* where text and pictures meet: the key of a picture, or 0 for text, and the ids."""
    found: list[tuple[int, list[int]]] = []
    for token in ids:
        key = key_of(token) if token >= PICTURE_TOKENS else 0
        if found and found[-1][0] == key:
            found[-1][1].append(token)
        else:
            found.append((key, [token]))
    return found
