"""The HTTP server: finds the endpoint of a key, reads requests, writes answers and streams."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from aiohttp import web

from quintain import InfrastructureError
from quintain.errors import UsageError

from . import api
from .endpoint import Endpoint, over
from .errors import ApiError, too_large

ALIVE = b": keep-alive\n\n"
"""A comment of a stream, which clients leave out."""
MOST_ENDED = 100_000
"""Keys of ended episodes that are remembered, for a clearer error."""


class Server:
    """Serves the endpoints that are added to it.

    Args:
        host, port: to listen on; port 0 takes a free one. Without *remote* the host must be a
            loopback address.
        max_bytes: size of a request's body.
        models: names that ``GET /v1/models`` lists. Requests may name any model, for agents often
            fix one.

    Attributes:
        keep_alive: seconds of silence after which a stream says that it lives: below the read
            timeouts of clients, of which httpx has 5 s by default and agents set 1 s.
    """

    keep_alive = 0.5

    def __init__(
        self,
        *,
        host: str,
        port: int,
        max_bytes: int,
        remote: bool = False,
        models: Iterable[str] = ("default",),
    ) -> None:
        if not (remote or is_loopback(host)):
            raise UsageError(
                f"host is {host!r}, which other machines reach: whoever has a key can use the "
                "model; take 127.0.0.1, or set remote = true"
            )
        if not 0 <= port <= 65535:
            raise UsageError(f"port is {port}; expected 0 (a free one) to 65535")
        self.host, self.port = host, port
        self.models = list(models)
        self._max_bytes = max_bytes
        self._by_key: dict[bytes, Endpoint] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._read: dict[int, api.ApiRequest] = {}
        """What requests ask for that are read and not answered, by the `id` of the request."""

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

    def knows(self, key: str) -> bool:
        """Return whether *key* is, or was, that of an endpoint."""
        digest = _digest(key)
        return digest in self._by_key or digest in self._ended

    async def endpoint_for(self, key: str) -> Endpoint:
        """Return the endpoint of a key.

        Raises:
            ApiError: 401 for an unknown key, 410 for one of an ended episode.
        """
        digest = _digest(key)
        if digest in self._by_key:
            return self._by_key[digest]
        if digest in self._ended:
            raise over()
        raise ApiError(
            401, "invalid_api_key", "no episode has this key; send the one that it was given"
        )

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=self._max_bytes)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away cancels its handler, and with it the sampling.
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port, backlog=4096).start()
        except OSError as e:
            await runner.cleanup()
            hint = "; another program listens there: take another port, or 0 for a free one"
            message = f"the gateway cannot listen on {self.host}:{self.port}: {e}"
            raise InfrastructureError(message + hint * (e.errno == errno.EADDRINUSE)) from e
        self._runner = runner
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for endpoint in [*self._by_key.values()]:
            await self.end(endpoint)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def check(self, request: web.Request) -> None:
        """Raise an `ApiError` for a request that must not be answered, whatever its key."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        kept = _KeptAlive(request, self.keep_alive, self._read)
        try:
            response = await kept.until(self.answer(request))
        except ApiError as e:
            response = api.ApiResponse.of(e, request.path)
            if kept.begun:  # its status is sent
                response = api.late_error(e, request.path)
        except web.HTTPRequestEntityTooLarge:
            response = api.ApiResponse.of(too_large(self._max_bytes), request.path)
        finally:
            self._read.pop(id(request), None)
        if response.events is not None:
            return await kept.stream(response)
        return web.Response(body=response.body, status=response.status, headers=response.headers)

    async def answer(self, request: web.Request) -> api.ApiResponse:
        method = "GET" if request.method == "HEAD" else request.method
        api.route(method, request.path)
        self.check(request)
        sent = (request.headers.get(name, "") for name in ("Authorization", "x-api-key"))
        keys = api.keys_of(*sent)
        # A proxy of the agent may put a key of its own into one of the headers.
        key = next(filter(self.knows, keys), keys[0])
        await self.endpoint_for(key)  # an unknown key is refused before its request is read
        body = await request.read()
        endpoint = await self.endpoint_for(key)
        asked = api.ApiRequest(
            method=method, path=request.path, content_type=request.content_type, body=body
        )
        self._read[id(request)] = asked
        return await api.answer(endpoint, asked, self.models)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches *host*."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _digest(key: str) -> bytes:
    """Return the digest by which a key is looked up, so that the time of a look-up says nothing
    about the keys.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class _KeptAlive:
    """The answer to one request: a stream says that it lives while the policy samples.

    The status goes out with the first sign, so that whatever fails before has a status of its own.
    """

    def __init__(
        self, request: web.Request, seconds: float, read: Mapping[int, api.ApiRequest]
    ) -> None:
        self._request, self._seconds, self._read = request, seconds, read
        self._stream: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """Return whether the status is sent."""
        return self._stream is not None

    async def until(self, answer: Coroutine[Any, Any, api.ApiResponse]) -> api.ApiResponse:
        """Return the answer; cancelling the call cancels it.

        Raises:
            ApiError: what the client is told instead.
        """
        task = asyncio.ensure_future(answer)
        streams: bool | None = None
        try:
            while not (await asyncio.wait([task], timeout=self._seconds))[0]:
                if streams is None and id(self._request) in self._read:
                    streams = api.streams(self._read[id(self._request)])
                if streams:
                    await self._say(ALIVE)
        except BaseException:  # the client has gone, or the server ends
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()

    async def stream(self, response: api.ApiResponse) -> web.StreamResponse:
        """Send the events of *response*, and end."""
        for event in response.events or ():
            await self._say(event.encode())
        stream = await self._begun()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await stream.write_eof()
        return stream

    async def _say(self, data: bytes) -> None:
        await (await self._begun()).write(data)

    async def _begun(self) -> web.StreamResponse:
        if self._stream is None:
            self._stream = web.StreamResponse(headers=api.EVENTS)
            await self._stream.prepare(self._request)
        return self._stream
