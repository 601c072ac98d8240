"""The result of a call, as text of bounded length without control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcp.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from .fence import fenced, neutral

URI_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class McpResult:
    """What came of a call.

    Attributes:
        text: of the result, shortened and neutral (see `fence`); a line stands for an image or a
            resource.
        failed: the tool reports an error, the call was refused, or it took too long.
        structured: the structured content, as the server sent it; ``None`` without one.
        shown: the message for the model: *text* in its fence. Words of our own have none.
    """

    text: str
    failed: bool = False
    structured: Any = None
    shown: str


def refused(reason: str) -> McpResult:
    """Return the result of a call without an answer; *reason* is in our own words, or neutral."""
    return McpResult(text=reason, failed=True, shown=reason)


def read_result(result: CallToolResult, tool: str, limit: int, *, fence: bool) -> McpResult:
    """Read *result* with at most *limit* characters."""
    text, size = "", 0
    for part in _parts(result):
        size += len(part) + bool(size)
        if len(text) <= limit:
            text = f"{text}\n{part[: limit + 1]}" if text else part[: limit + 1]
    cut = neutral(text[:limit]) + (f" ... ({size:,} characters in all)" if size > limit else "")
    shown = fenced(cut, tool) if fence else cut
    return McpResult(
        text=cut, failed=result.is_error, structured=result.structured_content, shown=shown
    )


def _parts(result: CallToolResult) -> Iterator[str]:
    if not result.content and result.structured_content is not None:
        yield json.dumps(result.structured_content, ensure_ascii=False)
    for block in result.content:
        match block:
            case TextContent():
                yield block.text
            case ImageContent() | AudioContent():
                size = len(block.data) * 3 // 4 - block.data[-2:].count("=")  # of base64
                yield f"[{block.type}: {_line(block.mime_type)}, {size:,} bytes, not shown]"
            case ResourceLink():
                yield f"[resource: {_line(str(block.uri))}, not shown]"
            case EmbeddedResource():
                yield f"[resource: {_line(str(block.resource.uri))}, not shown]"
            case _:
                yield f"[{_line(block.type)}, not shown]"


def _line(text: str) -> str:
    return " ".join(text.split())[:URI_CHARS]
