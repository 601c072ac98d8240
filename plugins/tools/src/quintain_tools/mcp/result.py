"""The result of a call, as text of bounded length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from quintain.models import PICTURE
from quintain.types import encodable, levels

from .fence import escaped, fenced

URI_CHARS = 200
MOST_VALUES = 1000
"""Values of structured content that are looked for in the text beside it."""
MOST_PICTURES = 16
"""Of a result, as of a message of an agent."""
LONG = 80
"""Characters from which a text cannot stand in another one by chance."""


@dataclass(frozen=True, kw_only=True)
class McpResult:
    """What came of a call.

    Attributes:
        text: of the result, as the server sent it, cut to the limit. An image is a picture of
            `quintain_vision` where that is installed; else a line stands for it, as for a sound,
            bytes or a link.
        failed: the tool reports an error, the call was refused, or it took too long.
        structured: the structured content, as the server sent it; ``None`` without one.
        shown: the message for the model: *text*, in a fence if the server has one.
    """

    text: str
    failed: bool = False
    structured: Any = None
    shown: str


def refused(reason: str) -> McpResult:
    """Return the result of a call without an answer; *reason* is in our own words."""
    return McpResult(text=reason, failed=True, shown=reason)


def read_result(result: CallToolResult, tool: str, limit: int, *, fence: bool) -> McpResult:
    """Read *result* with at most *limit* characters.

    Raises:
        InfrastructureError: its pictures cannot be stored.
    """
    text, size = "", 0
    for number, part in enumerate(chain(_parts(result), _structured(result, limit))):
        size += len(part) + bool(number)
        if len(text) <= limit:
            text = f"{text}\n{part[: limit + 1]}" if number else part[: limit + 1]
    cut = encodable(text[:limit])
    if size > limit:
        if cut.count(PICTURE) % 2:  # within a picture, which is left out as a whole
            cut = cut.rpartition(PICTURE)[0]
        cut += f" ... ({size:,} characters in all)"
    return McpResult(
        text=cut,
        failed=result.is_error,
        structured=result.structured_content,
        shown=fenced(escaped(cut), tool) if fence else cut,
    )


def _parts(result: CallToolResult) -> Iterator[str]:
    """Yield a text of each block."""
    embedded = sum(isinstance(block, EmbeddedResource) for block in result.content)
    pictures = 0
    for block in result.content:
        match block:
            case TextContent():
                yield block.text
            case ImageContent():
                pictures += 1
                yield _image(block.mime_type, block.data, pictures)
            case AudioContent():
                yield f"[audio: {_line(block.mime_type)}, {_size(block.data):,} bytes, not shown]"
            case ResourceLink():
                yield f"[resource: {_line(str(block.uri))}, not shown]"
            case EmbeddedResource(resource=TextResourceContents() as resource):
                # which of several texts is which
                head = f"[resource: {_line(str(resource.uri))}]\n" if embedded > 1 else ""
                yield head + resource.text
            case EmbeddedResource(resource=BlobResourceContents() as resource) if _is_seen(
                resource
            ):
                pictures += 1
                yield _image(str(resource.mime_type), resource.blob, pictures)
            case EmbeddedResource(resource=BlobResourceContents() as resource):
                size = _size(resource.blob)
                yield f"[resource: {_line(str(resource.uri))}, {size:,} bytes, not shown]"
            case _:
                yield f"[{_line(block.type)}, not shown]"


def _is_seen(resource: BlobResourceContents) -> bool:
    """Return whether *resource* is an image, and there is who reads it."""
    is_image = (resource.mime_type or "").startswith("image/")
    return is_image and find_spec("quintain_vision") is not None


def _image(kind: str, data: str, number: int) -> str:
    """Return what stands for the image *number* of a result, from 1 up: a picture that a
    vision-language model sees, or a line that says why it is none.

    Args:
        kind: of its media, such as ``image/png``.
        data: its file in base64.
    """
    reason = ""
    if number > MOST_PICTURES:
        reason = f": a result shows {MOST_PICTURES} pictures"
    elif find_spec("quintain_vision") is not None:
        from quintain_vision import PictureError, StoreError, tool_picture

        try:
            return tool_picture(f"data:image/any;base64,{data}")
        except StoreError:  # ours, and nothing that the policy should read
            raise
        except PictureError as e:  # of the server, whose pictures must not end a run
            reason = f": {_line(str(e))}"
    return f"[image: {_line(kind)}, {_size(data):,} bytes, not shown{reason}]"


def _size(data: str) -> int:
    """Return the bytes of *data*: four characters of base64 hold three, less one for each "=" at
    the end.
    """
    return len(data) * 3 // 4 - data[-2:].count("=")


def _structured(result: CallToolResult, limit: int) -> Iterator[str]:
    """Yield the structured content as JSON, unless the blocks say the same, as they normally do, or
    are cut before it.
    """
    value = result.structured_content
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if value is None or sum(map(len, texts)) > limit:
        return
    if not _is_said(value, texts):
        yield json.dumps(value, ensure_ascii=False)


def _is_said(value: Any, texts: list[str]) -> bool:
    """Return whether one of *texts* is *value* as JSON, or each name and value stands in them; the
    name of a value that is alone, such as ``result``, is nobody's word.
    """
    if any(_as_json(text) == (value,) for text in texts):
        return True
    while isinstance(value, Mapping) and len(value) == 1:
        (value,) = value.values()
    words = [*islice(_words(value), MOST_VALUES + 1)]
    said = "\n".join(texts)
    return len(words) <= MOST_VALUES and all(_stands_in(word, said) for word in words)


def _as_json(text: str) -> tuple[Any, ...]:
    """Return what *text* is as JSON, if it is any."""
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return ()


def _words(value: Any) -> Iterator[str | float | None]:
    for level in levels(value):
        for item in level:
            if isinstance(item, Mapping):
                yield from item
            elif not isinstance(item, (list, tuple)):
                yield item


def _stands_in(word: str | float | None, text: str) -> bool:
    if word == "" or (isinstance(word, str) and len(word) > LONG):
        return word in text
    spelled = {json.dumps(word, ensure_ascii=False).strip('"'), str(word)}
    return any(re.search(rf"(?<![\w.-]){re.escape(s)}(?!\w|\.\w)", text) for s in spelled)


def _line(text: str) -> str:
    return " ".join(text.split())[:URI_CHARS]
