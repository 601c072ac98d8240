"""Pictures in the text of messages.

A message stays text: a picture in it is a reference with its size and its digest, between two
characters that are none of Unicode. So tasks, transcripts and stored rollouts hold pictures as they
hold text, and the id of a task depends on the pixels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain import Message
from quintain.models import PICTURE
from quintain.types import Role

from .files import PictureError, PictureLimits, read
from .store import put

REFERENCE = re.compile(f"{PICTURE}image ([0-9]+)x([0-9]+) ([0-9a-f]{{32}}){PICTURE}", re.ASCII)
"""Width, height and digest of a picture in a text."""


def picture(source: bytes | str | Path, *, limits: PictureLimits | None = None) -> str:
    """Store a picture and return what stands for it in the text of a message.

    Args:
        source: the bytes of a PNG, JPEG or WebP file, its path, or a ``data:`` URL in base64.

    Raises:
        PictureError: it is refused or broken.
    """
    found = read(source, limits or PictureLimits())
    put(found)
    return f"{PICTURE}image {found.width}x{found.height} {found.digest}{PICTURE}"


def message(
    role: Role, parts: Sequence[Mapping[str, Any]], *, limits: PictureLimits | None = None
) -> Message:
    """Return a message of *parts*, in the forms of transformers and of OpenAI's API.

    Args:
        parts: ``{"type": "text", "text": ...}``, ``{"type": "image", "image": BYTES}`` (or
            ``"path"`` or ``"url"``, a ``data:`` URL), or ``{"type": "image_url", "image_url":
            {"url": ...}}``.

    Raises:
        PictureError: a part has another form, there are too many pictures, or one is refused.
    """
    limits = limits or PictureLimits()
    _check_count(sum(part.get("type") in ("image", "image_url") for part in parts), limits)
    pieces = [_text_of(part, limits) for part in parts]
    _check_count(sum(len(REFERENCE.findall(piece)) for piece in pieces), limits)
    return Message(role, "".join(pieces))


def _check_count(count: int, limits: PictureLimits) -> None:
    if count > limits.count:
        raise PictureError(
            f"a message has {count} pictures; the limit is {limits.count}. Leave some out, or raise "
            "PictureLimits.count"
        )


def shown(text: str) -> str:
    """Return *text* as people read it, with ``[image 64x48]`` for each picture."""
    return REFERENCE.sub(r"[image \1x\2]", text)


def parts(text: str) -> Iterator[dict[str, str]]:
    """Yield the parts of *text* as chat templates read them, with the ``digest`` of pictures."""
    end = 0
    for found in REFERENCE.finditer(text):
        if found.start() > end:
            yield {"type": "text", "text": text[end : found.start()]}
        yield {"type": "image", "digest": found[3]}
        end = found.end()
    if end < len(text) or not text:
        yield {"type": "text", "text": text[end:]}


def _text_of(part: Mapping[str, Any], limits: PictureLimits) -> str:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image":
        for key in ("image", "path"):
            if key in part:
                return picture(part[key], limits=limits)
        if "url" in part:
            return picture(_data_url(part["url"]), limits=limits)
    if kind == "image_url" and isinstance(part.get("image_url"), Mapping):
        return picture(_data_url(part["image_url"].get("url")), limits=limits)
    raise PictureError(
        f"a part of a message is {dict(part)!r:.120}; expected "
        "{'type': 'text', 'text': ...} or {'type': 'image', 'image': BYTES}, with 'path' or 'url' "
        "in place of 'image'"
    )


def _data_url(url: Any) -> str:
    """Return *url*, which must hold the picture itself: who sends a message names no file here."""
    if not isinstance(url, str) or not url.startswith("data:"):
        raise PictureError(
            f"the URL of a picture is {url!r:.80}; expected a data: URL. A file has the key 'path'"
        )
    return url
