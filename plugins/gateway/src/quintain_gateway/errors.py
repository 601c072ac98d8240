"""Errors, in the shape of OpenAI's API; `messages` has that of Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ApiError", "too_large"]


class ApiError(Exception):
    """An answer other than 200.

    Args:
        status: of HTTP.
        code: for programs; ``docs/gateway.md`` lists all.
        message: for people.
        param: the field of the request that is wrong.
        retry: whether clients should send the request again.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry

    @property
    def body(self) -> dict[str, Any]:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, "")
        kind = kind or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        }

    @property
    def headers(self) -> Mapping[str, str]:
        """``x-should-retry`` is what the official clients obey before any rule about the status."""
        return (
            {"retry-after": "0", "x-should-retry": "true"}
            if self.retry
            else {"x-should-retry": "false"}
        )


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the error 400: the request is wrong."""
    return ApiError(400, code, message, param=param)


def unsupported(param: str, message: str) -> ApiError:
    """Return the error 400: the request asks for what the gateway does not do."""
    return ApiError(400, "unsupported_parameter", message, param=param)


def too_large(limit: int) -> ApiError:
    """Return the error 413: the body is larger than *limit* bytes."""
    return ApiError(413, "request_too_large", f"the body is larger than {limit:,} bytes")
