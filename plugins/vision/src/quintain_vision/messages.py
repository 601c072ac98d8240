"""Pictures in the text of messages.

A message stays text: a picture in it is a reference with its size and its digest, between two
characters that are none of Unicode. So tasks, transcripts and stored rollouts hold pictures as they
hold text, and the id of a task depends on the pixels.
"""

from __future__ import annotations

import hmac
import io
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain import Message
from quintain.models import PICTURE
from quintain.types import Role

from .files import Picture, PictureError, PictureLimits, read
from .store import SHORT, data_url, put, signature, stored

REFERENCE = re.compile(f"{PICTURE}image ([0-9]+)x([0-9]+) ([0-9a-f]{{32}}){PICTURE}", re.ASCII)
"""Width, height and digest of a picture in a text; of one of a tool, the first `SHORT` digits and a
signature.
"""


def picture(
    source: bytes | str | Path,
    *,
    limits: PictureLimits | None = None,
    decoding: Callable[[int], None] | None = None,
) -> str:
    """Store a picture and return what stands for it in the text of a message of the user or of the
    system.

    Args:
        source: the bytes of a PNG, JPEG or WebP file, its path, or a ``data:`` URL in base64.
        decoding: called with the width times the height of a picture that this process has not
            seen of late, before it is decoded. What it raises is raised.

    Raises:
        PictureError: it is refused or broken.
        StoreError: the folder of the pictures cannot be written.
    """
    found = _stored(source, limits, decoding)
    return _reference(found.width, found.height, found.digest)


def tool_picture(
    source: bytes | str | Path,
    *,
    limits: PictureLimits | None = None,
    decoding: Callable[[int], None] | None = None,
) -> str:
    """Store a picture and return what stands for it in the result of a tool; arguments as of
    `picture`.

    Where the result of a tool has anything else, such as what the policy had it write, it is text.
    What this returns is signed with a secret of the store, which no policy knows.

    Raises:
        PictureError: it is refused or broken.
        StoreError: the folder of the pictures cannot be written.
    """
    found = _stored(source, limits, decoding)
    signed = signature(f"{found.width}x{found.height} {found.digest[:SHORT]}")
    return _reference(found.width, found.height, found.digest[:SHORT] + signed)


def is_signed(reference: re.Match[str]) -> bool:
    """Return whether `tool_picture` made what `REFERENCE` found."""
    width, height, digits = reference.groups()
    signed = signature(f"{width}x{height} {digits[:SHORT]}", new=False)
    return hmac.compare_digest(digits[SHORT:], signed)


def references(message: Message) -> list[re.Match[str]]:
    """Return the pictures of *message*. An assistant has none, and a tool those of `tool_picture`."""
    if message.role == "assistant" or PICTURE not in message.content:
        return []
    found = REFERENCE.finditer(message.content)
    return [one for one in found if message.role != "tool" or is_signed(one)]


def thumbnails(message: Message, side: int = 160) -> dict[str, str]:
    """Return the pictures of *message* as small ``data:`` URLs, at most *side* pixels wide and high,
    by what begins their digests; without those whose files are lost.
    """
    found: dict[str, str] = {}
    for reference in references(message):
        digits = reference[3][:SHORT]
        try:
            image = stored(digits)
        except PictureError:
            continue
        small = max(image.size) <= side
        image.thumbnail((side, side))
        file = io.BytesIO()
        image.save(file, "PNG" if small else "JPEG")  # a drawing of few pixels stays as it is
        kind = "png" if small else "jpeg"
        found[digits] = f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
    return found


def content_json(message: Message) -> str | list[dict[str, Any]]:
    """Return the content of *message* as APIs of OpenAI's form take it: its text, or parts of which
    pictures are ``image_url`` with a ``data:`` URL of the file that was stored.

    Raises:
        PictureError: a picture is lost.
    """
    found: list[dict[str, Any]] = []
    end = 0
    for reference in references(message):
        if reference.start() > end:
            found.append({"type": "text", "text": message.content[end : reference.start()]})
        found.append({"type": "image_url", "image_url": {"url": data_url(reference[3][:SHORT])}})
        end = reference.end()
    if end < len(message.content) and found:
        found.append({"type": "text", "text": message.content[end:]})
    return found or message.content


def _stored(
    source: bytes | str | Path,
    limits: PictureLimits | None,
    decoding: Callable[[int], None] | None,
) -> Picture:
    found = read(source, limits or PictureLimits(), decoding)
    put(found)
    return found


def _reference(width: int, height: int, digits: str) -> str:
    return f"{PICTURE}image {width}x{height} {digits}{PICTURE}"


def message(
    role: Role, parts: Sequence[Mapping[str, Any]], *, limits: PictureLimits | None = None
) -> Message:
    """Return a message of *parts*, in the forms of transformers and of OpenAI's API. In a message of
    a tool, pictures are those of `tool_picture`.

    Args:
        parts: ``{"type": "text", "text": ...}``, ``{"type": "image", "image": BYTES}`` (or
            ``"path"`` or ``"url"``, a ``data:`` URL), or ``{"type": "image_url", "image_url":
            {"url": ...}}``.

    Raises:
        PictureError: a part has another form, there are too many pictures, one is refused, or the
            role is that of the assistant, who writes text.
    """
    limits = limits or PictureLimits()
    count = sum(part.get("type") in ("image", "image_url") for part in parts)
    if count and role == "assistant":
        raise PictureError("a message of the assistant holds no picture: the policy writes text")
    _check_count(count, limits)
    store = tool_picture if role == "tool" else picture
    pieces = [_text_of(part, limits, store) for part in parts]
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


def _text_of(part: Mapping[str, Any], limits: PictureLimits, store: Callable[..., str]) -> str:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image":
        for key in ("image", "path"):
            if key in part:
                return store(part[key], limits=limits)
        if "url" in part:
            return store(_data_url(part["url"]), limits=limits)
    if kind == "image_url" and isinstance(part.get("image_url"), Mapping):
        return store(_data_url(part["image_url"].get("url")), limits=limits)
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
