"""The API of one endpoint apart from the wire: a request in, a response out."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from . import chat, responses
from .endpoint import Endpoint
from .errors import ApiError
from .fields import parsed

__all__ = ["ApiRequest", "ApiResponse", "answer", "bearer", "route"]

PATHS = {
    "/v1/chat/completions": "POST",
    "/v1/responses": "POST",
    "/v1/responses/{id}": "GET",
    "/v1/models": "GET",
    "/v1/models/{id}": "GET",
}
"""What is served, with the method of each. The id of a model may have slashes."""


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """A request whose sender is known to have the endpoint's key; *path* has no query."""

    method: str
    path: str
    content_type: str = ""
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class ApiResponse:
    """What the client gets; *events* in place of *body* for a stream of server-sent events."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    events: Iterator[str] | None = None

    @classmethod
    def of(cls, error: ApiError) -> ApiResponse:
        """Return the response that tells of *error*."""
        headers = {"Content-Type": "application/json; charset=utf-8", **error.headers}
        return cls(status=error.status, headers=headers, body=json.dumps(error.body).encode())


def route(method: str, path: str) -> tuple[str, str]:
    """Return the entry of `PATHS` for *path*, and the id in it; raises an `ApiError` for what is
    not served.
    """
    for served, expected in PATHS.items():
        prefix, has_id, _ = served.partition("{id}")
        name = unquote(path.removeprefix(prefix)) if has_id and path.startswith(prefix) else ""
        if method == expected and (
            path == served or (name and ("/" not in name or "models" in prefix))
        ):
            return served, name
    known = ", ".join(f"{method} {path}" for path, method in PATHS.items())
    raise ApiError(404, "unknown_url", f"no {method} {path} here; there are {known}")


def bearer(authorization: str) -> str:
    """Return the key in a header ``Authorization``.

    Raises:
        ApiError: there is none.
    """
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise ApiError(
            401, "missing_api_key", "send the key of the episode as `Authorization: Bearer KEY`"
        )
    return key.strip()


async def answer(
    endpoint: Endpoint, request: ApiRequest, models: Sequence[str] = ("default",)
) -> ApiResponse:
    """Return the response of *endpoint* to a request; cancelling the call cancels the sampling.

    Args:
        models: names that ``GET /v1/models`` lists.

    Raises:
        ApiError: what the client is told instead.
    """
    path, name = route(request.method, request.path)
    if path == "/v1/models":
        return _json({"object": "list", "data": [_model(m) for m in models]})
    if path == "/v1/models/{id}":
        return _json(_model(name))  # of any name: the policy answers to all
    if path == "/v1/responses/{id}":
        return _json(responses.stored(endpoint.histories, name))
    if request.content_type.partition(";")[0].strip().lower() != "application/json":
        # What a page in a browser could send unasked is refused with the rest.
        raise ApiError(
            415, "unsupported_media_type", "send the body as Content-Type: application/json"
        )
    body = parsed(request.body)
    return await (_chat if path == "/v1/chat/completions" else _responses)(endpoint, body)


async def _chat(endpoint: Endpoint, body: Mapping[str, Any]) -> ApiResponse:
    request = chat.request_of(body)
    answers = await endpoint.submit(request)
    whole = chat.response(request, answers, secrets.token_hex(12))
    return (
        _stream(chat.stream(whole, with_usage=request.stream_usage))
        if request.stream
        else _json(whole)
    )


async def _responses(endpoint: Endpoint, body: Mapping[str, Any]) -> ApiResponse:
    request = responses.request_of(body, endpoint.histories)
    (reply,) = await endpoint.submit(request)
    response_id = f"resp_{secrets.token_hex(12)}"
    whole = responses.response(body, request, reply, response_id)
    responses.remember(endpoint.histories, request, reply, whole)
    return _stream(responses.stream(whole)) if request.stream else _json(whole)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "quintain"}


def _json(value: Any) -> ApiResponse:
    return ApiResponse(
        headers={"Content-Type": "application/json"}, body=json.dumps(value).encode()
    )


def _stream(events: Iterator[str]) -> ApiResponse:
    """Server-sent events. The turn is complete before the first one, so that a failure still has
    its status.
    """
    return ApiResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}, events=events
    )
