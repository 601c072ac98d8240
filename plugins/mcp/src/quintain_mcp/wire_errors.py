"""Errors of the wire, as JSON-RPC errors of the one request that each concerns: the others go
on.
"""

from __future__ import annotations

from mcp.types import ErrorData

OVERSIZE, UNREACHABLE = -31001, -31002
"""Codes outside of those that JSON-RPC reserves: an answer was too long; the server did not
answer.
"""


def oversize(size: int, limit: int) -> ErrorData:
    """Return the error that the answer has *size* bytes (as far as they were read), of which
    *limit* are allowed.
    """
    return ErrorData(
        code=OVERSIZE, message=f"the result has at least {size:,} bytes; at most {limit:,} are read"
    )


def unreachable(reason: str) -> ErrorData:
    """Return the request did not reach the server, or its answer did not come back."""
    return ErrorData(code=UNREACHABLE, message=reason)
