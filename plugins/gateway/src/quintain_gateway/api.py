"""The API of one endpoint apart from the wire: a request in, a response out."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from quintain import InfrastructureError

from . import chat, messages, responses
from .endpoint import Endpoint
from .errors import ApiError
from .fields import NEW_PIXELS, parsed

__all__ = ["ApiRequest", "ApiResponse", "answer", "key_of", "route"]

PATHS = {
    "/v1/chat/completions": "POST",
    "/v1/messages": "POST",
    "/v1/messages/count_tokens": "POST",
    "/v1/responses": "POST",
    "/v1/responses/{id}": "GET",
    "/v1/feedback": "POST",
    "/v1/models": "GET",
    "/v1/models/{id}": "GET",
}
"""What is served, with the method of each. The id of a model may have slashes."""


EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
"""Headers of a stream."""


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
    def of(cls, error: ApiError, path: str) -> ApiResponse:
        """Return the response that tells of *error*, in the shape of the API at *path*."""
        headers = {"Content-Type": "application/json; charset=utf-8", **error.headers}
        body = messages.error_of(error) if path.startswith("/v1/messages") else error.body
        return cls(status=error.status, headers=headers, body=json.dumps(body).encode())


def streams(request: ApiRequest) -> bool:
    """Return whether *request* asks for its answer as a stream, as far as it can be read."""
    try:
        body = parsed(request.body) if PATHS.get(request.path) == "POST" else {}
    except ApiError:  # the answer tells
        return False
    return body.get("stream") is True


def late_error(error: ApiError, path: str) -> ApiResponse:
    """Return what tells of *error* in a stream whose status is sent, as the API at *path* does."""
    told = dict(error.body)
    if path.startswith("/v1/messages"):
        told = messages.error_of(error)
    elif path.startswith("/v1/responses"):
        told |= {"type": "error", "code": error.code, "message": error.message}
        told |= {"param": error.param, "sequence_number": 0}
    named = "event: error\n" if "type" in told else ""
    return ApiResponse(headers=EVENTS, events=iter([f"{named}data: {json.dumps(told)}\n\n"]))


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


def key_of(authorization: str, api_key: str) -> str:
    """Return the key in a header ``Authorization``, else in ``x-api-key``.

    Raises:
        ApiError: there is none.
    """
    return keys_of(authorization, api_key)[0]


def keys_of(authorization: str, api_key: str) -> list[str]:
    """Return the keys in the headers ``Authorization`` and ``x-api-key``, at least one.

    Raises:
        ApiError: there is none.
    """
    scheme, _, bearer = authorization.partition(" ")
    sent = [bearer if scheme.lower() == "bearer" else "", api_key]
    keys = [key.strip() for key in sent if key.strip()]
    if not keys:
        expected = "as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        raise ApiError(401, "missing_api_key", f"send the key of the episode {expected}")
    return keys


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
        ends = {"has_more": False, "first_id": models[0], "last_id": models[-1]}
        return _json({"object": "list", "data": [_model(m) for m in models], **ends})
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
    if path == "/v1/feedback":
        return _json(endpoint.rated(body))
    served = {
        "/v1/chat/completions": _chat,
        "/v1/messages": _messages,
        "/v1/messages/count_tokens": _count_tokens,
        "/v1/responses": _responses,
    }
    NEW_PIXELS.set(0)
    try:
        return await served[path](endpoint, body)
    except InfrastructureError as e:  # of the pictures: those of the engine are answers
        raise endpoint.not_read(e) from e


async def _count_tokens(endpoint: Endpoint, body: Mapping[str, Any]) -> ApiResponse:
    return _json({"input_tokens": endpoint.prompt_tokens(messages.request_of(body))})


async def _chat(endpoint: Endpoint, body: Mapping[str, Any]) -> ApiResponse:
    request = chat.request_of(body, endpoint.read)
    answers = await endpoint.submit(request)
    whole = chat.response(request, answers, secrets.token_hex(12))
    endpoint.answered(whole["id"], body, answers)
    return (
        _stream(chat.stream(whole, with_usage=request.stream_usage))
        if request.stream
        else _json(whole)
    )


async def _messages(endpoint: Endpoint, body: Mapping[str, Any]) -> ApiResponse:
    request = messages.request_of(body)
    (reply,) = await endpoint.submit(request)
    whole = messages.response(request, reply, secrets.token_hex(12))
    endpoint.answered(whole["id"], body, [reply])
    return _stream(messages.stream(whole, reply)) if request.stream else _json(whole)


async def _responses(endpoint: Endpoint, body: Mapping[str, Any]) -> ApiResponse:
    request = responses.request_of(body, endpoint.histories)
    (reply,) = await endpoint.submit(request)
    response_id = f"resp_{secrets.token_hex(12)}"
    whole = responses.response(body, request, reply, response_id)
    responses.remember(endpoint.histories, request, reply, whole)
    endpoint.answered(response_id, body, [reply])
    return _stream(responses.stream(whole)) if request.stream else _json(whole)


def _model(name: str) -> dict[str, Any]:
    """Return a model in the shapes of OpenAI and Anthropic, whose fields have different names."""
    openai = {"object": "model", "created": 0, "owned_by": "quintain"}
    anthropic = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, **openai, **anthropic, "lifecycle": "active"}


def _json(value: Any) -> ApiResponse:
    return ApiResponse(
        headers={"Content-Type": "application/json"}, body=json.dumps(value).encode()
    )


def _stream(events: Iterator[str]) -> ApiResponse:
    """Return a response of server-sent events. The turn is complete before the first one."""
    return ApiResponse(headers=EVENTS, events=events)
