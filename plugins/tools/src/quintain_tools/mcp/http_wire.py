"""The wire to an MCP server over streamable HTTP: the SDK's transport over a client that bounds
every message.

The SDK ends all requests of a connection when one of them fails. Here each failure of the network
becomes a JSON-RPC error that answers its own request.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from .wire_errors import answered, oversize, unreachable, unreadable

# It logs tracebacks of sessions that end while an answer arrives; what concerns a call is an error
# of the call.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)
CONNECT_SECONDS = 10.0
JSON, EVENTS = "application/json", "text/event-stream"
CALL = "tools/call"
REFUSES_SENDER = frozenset({401, 402, 403, 407, 408, 421, 425, 429, 451})
"""Statuses that say nothing about a message, whatever their body: a key, a limit, a route."""
FOLLOWED = frozenset({307, 308})
"""Redirects that keep method and body."""


class HttpWire:
    """A transport of the `mcp` SDK: entering it gives the streams of messages."""

    failure = ""

    def __init__(self, url: str, *, headers: Mapping[str, str], limit: int) -> None:
        self._url, self._headers, self._limit = url, headers, limit
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        # Calls have time limits of their own, and the stream of notifications is silent for hours.
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        client = httpx2.AsyncClient(
            transport=BoundedTransport(self._limit),
            headers={**self._headers, "accept-encoding": "identity"},
            timeout=timeout,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            wire = streamable_http_client(self._url, http_client=client, max_sse_event_size=None)
            streams = await stack.enter_async_context(wire)
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.__aexit__(*exc)

    def said(self) -> str:
        """Return nothing: what a server writes elsewhere is not seen here."""
        return ""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends requests; an answer that fails, or has a message of more than *limit* bytes, becomes a
    JSON-RPC error.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as e:
            return _answer(request, unreachable(f"{type(e).__name__}: {e}".removesuffix(": ")))
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        if response.headers.get("content-encoding", "identity") != "identity":
            await stream.aclose()
            return _answer(
                request, unreachable("the server compresses its answers, although asked not to")
            )
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        # Bounded here, so that what `_refusal` reads is, too.
        bounded = (
            _Messages(stream, request, self._limit)
            if kind == EVENTS
            else _Body(stream, request, self._limit)
        )
        if response.status_code >= 400:
            return await _refusal(request, response, kind, bounded)
        if problem := _problem(request, response, kind):
            await bounded.aclose()
            return _answer(request, unreachable(problem))
        # The body may be replaced by an error of another length.
        headers = [(k, v) for k, v in response.headers.raw if k.lower() != b"content-length"]
        return httpx2.Response(
            response.status_code, headers=headers, stream=bounded, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _refusal(
    request: httpx2.Request, response: httpx2.Response, kind: str, body: httpx2.AsyncByteStream
) -> httpx2.Response:
    """Return the JSON-RPC error of an answer with a status from 400: the server's own, if it is
    about what the request says, else one that names the status.
    """
    content = b"".join([chunk async for chunk in body])
    await body.aclose()
    status = response.status_code
    session_lost = status == 404 and MCP_SESSION_ID in request.headers
    theirs = kind == JSON and not session_lost and status < 500 and status not in REFUSES_SENDER
    if theirs and _is_error_of(request, content):
        return httpx2.Response(status, headers={"content-type": JSON}, content=content)
    reason = "the server no longer knows the session" if session_lost else f"HTTP status {status}"
    excerpt = " ".join(content[:200].decode("utf-8", "replace").split())
    return _answer(request, unreachable(f"{reason}: {excerpt}" if excerpt else reason), status)


def _is_error_of(request: httpx2.Request, content: bytes) -> bool:
    """Return whether *content* is a JSON-RPC error that answers *request*. Before the first call a server
    may refuse what it has not read, such as a newer version.
    """
    message = _message(content)
    sent = _sent(request)
    return isinstance(message, JSONRPCError) and (
        sent.get("method") != CALL or str(message.id) == str(sent["id"])
    )


def _problem(request: httpx2.Request, response: httpx2.Response, kind: str) -> str:
    """Return why *response*, whose status is below 400, has no answer to a call; empty if it may
    have one.
    """
    if _sent(request).get("method") != CALL:
        return ""
    status = response.status_code
    if status in FOLLOWED:
        # The SDK follows it within the origin.
        target = _target(request, response.headers.get("location", ""))
        return (
            ""
            if target is not None and _origin(target) == _origin(request.url)
            else f"HTTP status {status}: the server redirects elsewhere, which is not followed"
        )
    if status != 200:
        return f"HTTP status {status}"
    return (
        "" if kind in (JSON, EVENTS) else f"the answer is {kind[:80] or 'of no type'!r}, and no MCP"
    )


def _target(request: httpx2.Request, location: str) -> httpx2.URL | None:
    try:
        return request.url.join(location)
    except (httpx2.InvalidURL, ValueError):
        return None


def _origin(url: httpx2.URL) -> tuple[object, ...]:
    return url.scheme, url.host, url.port


def _sent(request: httpx2.Request) -> dict[str, Any]:
    """Return the message of *request*; empty for a request without one."""
    return json.loads(request.content) if request.method == "POST" else {}


def _message(content: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(content, by_name=False)
    except ValueError:
        return None


def _checked(request: httpx2.Request, content: bytes) -> bytes:
    """Return *content*, the answer to *request*, or the error that stands for it if it cannot be
    read or answers something else.
    """
    sent = _sent(request)
    if sent.get("method") != CALL:
        return content
    message = _message(content)
    if message is None:
        is_its = answered(content, content) == sent["id"]
        return _error(request, unreadable() if is_its else unreachable("its answer is no JSON-RPC"))
    # A notification or a request of the server has no result, and comes before the answer.
    if isinstance(message, (JSONRPCResponse, JSONRPCError)) and str(message.id) != str(sent["id"]):
        return _error(request, unreachable("its answer belongs to another request"))
    return content


def _answer(request: httpx2.Request, error: ErrorData, status: int = 502) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": JSON}, content=_error(request, error))


def _error(request: httpx2.Request, error: ErrorData) -> bytes:
    """Return a JSON-RPC message that answers *request* with *error*."""
    return json.dumps(
        {
            "jsonrpc": "2.0",
            "id": _sent(request).get("id"),
            "error": error.model_dump(exclude_none=True),
        }
    ).encode()


class _Body(httpx2.AsyncByteStream):
    """A body that is one message, held until it is complete."""

    def __init__(self, inner: httpx2.AsyncByteStream, request: httpx2.Request, limit: int) -> None:
        self._inner, self._request, self._limit = inner, request, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = bytearray()
        try:
            async for chunk in self._inner:
                received += chunk
                if len(received) > self._limit:
                    yield _error(self._request, oversize(len(received), self._limit))
                    return
        except httpx2.TransportError as e:
            yield _error(self._request, unreachable(f"the answer broke off: {type(e).__name__}"))
            return
        yield _checked(self._request, bytes(received))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Messages(_Body):
    """A body of server-sent events, each held until it is complete."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = bytearray()
        try:
            async for chunk in self._inner:
                received += chunk.replace(b"\r", b"")
                *events, received = received.split(b"\n\n")
                for event in (*events, received):
                    if len(event) > self._limit:
                        yield self._event(oversize(len(event), self._limit))
                        return
                for event in events:
                    yield self._read(bytes(event)) + b"\n\n"
        except httpx2.TransportError as e:
            yield self._event(unreachable(f"the answer broke off: {type(e).__name__}"))
            return
        yield bytes(received)

    def _read(self, event: bytes) -> bytes:
        """Return *event* as it is, or the error that stands for the answer in it."""
        lines = event.split(b"\n")
        names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
        data = b"\n".join(
            line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")
        )
        if not data or names not in ([], [b"message"]):
            return event
        checked = _checked(self._request, data)
        return event if checked == data else b"event: message\ndata: " + checked

    def _event(self, error: ErrorData) -> bytes:
        if self._request.method != "POST":
            return b""
        return b"event: message\ndata: " + _error(self._request, error) + b"\n\n"
