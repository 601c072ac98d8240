"""The HTTP server: finds the endpoint of a key, reads requests, writes answers and streams."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

from aiohttp import web

from quintain import InfrastructureError
from quintain.errors import UsageError

from . import chat, responses
from .endpoint import Endpoint, over
from .errors import ApiError
from .fields import parsed

MOST_ENDED = 100_000
"""Keys of ended episodes that are remembered, for a clearer error."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves the endpoints that are added to it.

    Args:
        host, port: to listen on; port 0 takes a free one. Without *remote* the host must be a loopback address.
        max_bytes: size of a request's body.
        models: names that ``GET /v1/models`` lists. Requests may name any model, for agents often fix one.
    """

    def __init__(
        self, *, host: str, port: int, max_bytes: int, remote: bool = False, models: Iterable[str] = ("default",)
    ) -> None:
        if not (remote or is_loopback(host)):
            raise UsageError(
                f"host is {host!r}, which other machines reach: whoever has a key can use the model; "
                "take 127.0.0.1, or set remote = true"
            )
        self.host, self.port = host, port
        self.models = list(models)
        self._max_bytes = max_bytes
        self._by_key: dict[bytes, Endpoint] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"

    def add(self, endpoint: Endpoint) -> None:
        """Serve *endpoint* under its key."""
        self._by_key[_digest(endpoint.api_key)] = endpoint

    async def end(self, endpoint: Endpoint) -> None:
        """Stop serving *endpoint*; its requests in flight are cancelled."""
        key = _digest(endpoint.api_key)
        self._by_key.pop(key, None)
        self._ended[key] = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
        await endpoint.close()

    async def endpoint_for(self, key: str) -> Endpoint:
        """The endpoint of a key.

        Raises:
            ApiError: 401 for an unknown key, 410 for one of an ended episode.
        """
        digest = _digest(key)
        if digest in self._by_key:
            return self._by_key[digest]
        if digest in self._ended:
            raise over()
        raise ApiError(401, "invalid_api_key", "no episode has this key; send the one that it was given")

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=self._max_bytes)
        app.router.add_post("/v1/chat/completions", self._guarded(self._chat))
        app.router.add_post("/v1/responses", self._guarded(self._responses))
        app.router.add_get("/v1/models", self._guarded(self._models))
        app.router.add_route("*", "/{path:.*}", self._guarded(self._unknown))
        # A client that goes away cancels its handler, and with it the sampling.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port, backlog=4096).start()
        except OSError as e:
            await runner.cleanup()
            raise InfrastructureError(f"the gateway cannot listen on {self.host}:{self.port}: {e}") from e
        self._runner = runner
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for endpoint in [*self._by_key.values()]:
            await self.end(endpoint)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except ApiError as e:
                return web.json_response(e.body, status=e.status, headers=e.headers)
            except web.HTTPRequestEntityTooLarge:
                message = f"the body is larger than {self._max_bytes:,} bytes"
                error = ApiError(413, "request_too_large", message)
                return web.json_response(error.body, status=413, headers=error.headers)

        return guarded

    def check(self, request: web.Request) -> None:
        """Raise an `ApiError` for a request that must not be answered, whatever its key."""

    async def _endpoint(self, request: web.Request) -> Endpoint:
        self.check(request)
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(401, "missing_api_key", "send the key of the episode as `Authorization: Bearer KEY`")
        return await self.endpoint_for(key.strip())

    async def _opened(self, request: web.Request) -> tuple[Endpoint, Mapping[str, Any]]:
        """The endpoint and the body of a request."""
        endpoint = await self._endpoint(request)
        if request.content_type != "application/json":  # also what a page in a browser could send unasked
            raise ApiError(415, "unsupported_media_type", "send the body as Content-Type: application/json")
        return endpoint, parsed(await request.read())

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        endpoint, body = await self._opened(request)
        asked = chat.request_of(body)
        answers = await endpoint.submit(asked)
        response_id = secrets.token_hex(12)
        if asked.stream:
            return await _streamed(request, (f"data: {d}\n\n" for d in chat.stream(asked, answers, response_id)))
        return _json(chat.response(asked, answers, response_id))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        endpoint, body = await self._opened(request)
        asked = responses.request_of(body, endpoint.histories)
        (answer,) = await endpoint.submit(asked)
        response_id = f"resp_{secrets.token_hex(12)}"
        responses.remember(endpoint.histories, response_id, asked, answer)
        if asked.stream:
            return await _streamed(request, responses.stream(body, asked, answer, response_id))
        return _json(responses.response(body, asked, answer, response_id))

    async def _models(self, request: web.Request) -> web.StreamResponse:
        await self._endpoint(request)
        rows = [{"id": m, "object": "model", "created": 0, "owned_by": "quintain"} for m in self.models]
        return _json({"object": "list", "data": rows})

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        known = "POST /v1/chat/completions, POST /v1/responses, GET /v1/models"
        raise ApiError(404, "unknown_url", f"no {request.method} {request.path} here; there are {known}")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches *host*."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _digest(key: str) -> bytes:
    """Keys are looked up by digest, so that the time of a look-up says nothing about them."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _json(value: Any) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), content_type="application/json")


async def _streamed(request: web.Request, events: Iterator[str]) -> web.StreamResponse:
    """Server-sent events. The turn is complete before the first one, so that a failure still has its status."""
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await stream.prepare(request)
    for event in events:
        await stream.write(event.encode())
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        await stream.write_eof()
    return stream
