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
from mcp.types import ErrorData

from .wire_errors import oversize, unreachable

# It logs tracebacks of sessions that end while an answer arrives; what concerns a call is an error
# of the call.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)
CONNECT_SECONDS = 10.0
JSON, EVENTS = "application/json", "text/event-stream"


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
        bounded = (
            _Messages(stream, request, self._limit)
            if kind == EVENTS
            else _Body(stream, request, self._limit)
        )
        if response.status_code >= 400:
            return await _refusal(request, response, kind, bounded)
        headers = [(k, v) for k, v in response.headers.raw if k.lower() != b"content-length"]
        return httpx2.Response(
            response.status_code, headers=headers, stream=bounded, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _refusal(
    request: httpx2.Request, response: httpx2.Response, kind: str, body: httpx2.AsyncByteStream
) -> httpx2.Response:
    """Return the JSON-RPC error of an answer with a status from 400: the server's own, else one
    that names the status.
    """
    content = b"".join([chunk async for chunk in body])
    await body.aclose()
    session_lost = response.status_code == 404 and MCP_SESSION_ID in request.headers
    if kind == JSON and not session_lost and response.status_code < 500:
        return httpx2.Response(
            response.status_code, headers={"content-type": JSON}, content=content
        )
    reason = (
        "the server no longer knows the session"
        if session_lost
        else f"HTTP status {response.status_code}"
    )
    excerpt = " ".join(content[:200].decode("utf-8", "replace").split())
    return _answer(
        request, unreachable(f"{reason}: {excerpt}" if excerpt else reason), response.status_code
    )


def _answer(request: httpx2.Request, error: ErrorData, status: int = 502) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": JSON}, content=_error(request, error))


def _error(request: httpx2.Request, error: ErrorData) -> bytes:
    """Return a JSON-RPC message that answers *request* with *error*."""
    try:
        number = json.loads(request.content)["id"]
    except (ValueError, KeyError, TypeError):  # a notification, or no message at all
        number = None
    return json.dumps(
        {"jsonrpc": "2.0", "id": number, "error": error.model_dump(exclude_none=True)}
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
        yield bytes(received)

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
                    yield bytes(event) + b"\n\n"
        except httpx2.TransportError as e:
            yield self._event(unreachable(f"the answer broke off: {type(e).__name__}"))
            return
        yield bytes(received)

    def _event(self, error: ErrorData) -> bytes:
        if self._request.method != "POST":
            return b""
        return b"event: message\ndata: " + _error(self._request, error) + b"\n\n"
