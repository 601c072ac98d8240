"""Errors of the wire, as JSON-RPC errors of the one request that each concerns: the others go
on.
"""

from __future__ import annotations

import re

from mcp.types import ErrorData

OVERSIZE, UNREACHABLE, UNREADABLE = -31001, -31002, -31003
"""Codes outside of those that JSON-RPC reserves: an answer was too long; the server did not answer;
an answer to the request cannot be read.
"""
LONGEST = 500
"""Characters of a reason, which may quote the server."""
ENDS = 300
"""Bytes of both ends of a message, where its id stands."""
_ID_FIRST = re.compile(
    rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,(?!\s*"method")'
)
_ID_LAST = re.compile(
    rb'[}\]"\d]\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*\}\s*\Z'
)


def answered(head: bytes, tail: bytes) -> int | None:
    """Return the number of the request that a message answers which cannot be read, by its first
    and last bytes; ``None`` if they do not say.
    """
    found = _ID_FIRST.match(head[:ENDS]) or _ID_LAST.search(tail[-ENDS:])
    return int(found[1]) if found else None


def oversize(size: int, limit: int) -> ErrorData:
    """Return the error that the answer has *size* bytes (as far as they were read), of which
    *limit* are allowed.
    """
    return ErrorData(
        code=OVERSIZE, message=f"the result has at least {size:,} bytes; at most {limit:,} are read"
    )


def unreachable(reason: str) -> ErrorData:
    """Return the request did not reach the server, or its answer did not come back."""
    return ErrorData(code=UNREACHABLE, message=reason[:LONGEST])


def unreadable() -> ErrorData:
    """Return the error that the answer to one request is no message."""
    return ErrorData(code=UNREADABLE, message="the result is no JSON-RPC message")
