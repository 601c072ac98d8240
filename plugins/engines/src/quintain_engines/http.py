"""The one way in which members speak HTTP to a server: bounded in bytes and in seconds, without
redirects, compression and connections that others have used.

A server is a program of somebody else. It may answer for ever, answer another request, or send a
client to a host that nobody named. What it answers is checked by whoever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp

from quintain.data import read_json
from quintain.errors import InfrastructureError

__all__ = ["MOST_BYTES", "HttpAnswer", "HttpClient", "NoAnswer", "TimedOut", "json_of", "run_apart"]

MOST_BYTES = 64_000_000
"""Bytes of an answer, at most."""
MOST_REFUSAL = 65_536
"""Bytes that are read of an answer whose status is none of success; the rest is cut off."""
DEEPEST = 64
"""Levels of objects and lists in an answer, at most."""
CLOSE_SECONDS = 2.0
"""That a server may take to end a WebSocket."""
T = TypeVar("T")


class NoAnswer(InfrastructureError):
    """No connection, no answer within the time, or one that is no HTTP. It may pass."""


class TimedOut(NoAnswer):
    """No whole answer within the time."""


class HttpAnswer(NamedTuple):
    """What a server answered.

    Attributes:
        status: a redirect is a status like others.
        text: of the body, decoded as UTF-8 with replacement characters.
        wait: seconds that ``Retry-After`` asks for, 0 without it.
    """

    status: int
    text: str
    wait: float = 0.0


class HttpClient:
    """Asks one server, as ``async with``.

    Each request has a connection of its own: an answer that comes late, or twice, on a connection
    that is kept would be taken for that to the next request.

    Args:
        url: what all paths are appended to.
        seconds: for a request in all, from the connection to the last byte; ``None`` leaves it to
            the caller.
        most_bytes: of an answer.
        headers: of each request.
        cookies: keep the server's cookies, for sessions that one names.
    """

    def __init__(
        self,
        url: str,
        *,
        seconds: float | None,
        most_bytes: int = MOST_BYTES,
        headers: Mapping[str, str] | None = None,
        cookies: bool = False,
    ) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        self._most_bytes = most_bytes
        # Decompressed, a small answer may take all memory.
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}
        self._cookies = cookies
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_redirect)
        # addresses without a name have cookies, too
        jar = aiohttp.CookieJar(unsafe=True) if self._cookies else aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=self._headers,
            cookie_jar=jar,
            auto_decompress=False,
            trace_configs=[tracing],
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    @property
    def started(self) -> bool:
        return self._session is not None

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        data: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        most_bytes: int | None = None,
    ) -> HttpAnswer:
        """Send one request.

        Args:
            json: the body, as JSON.
            data: the body, as bytes or a file.
            seconds, most_bytes: for this request, instead of the client's.

        Raises:
            NoAnswer: see there.
            InfrastructureError: not started, or an answer that is too long or compressed.
        """
        session = self._started_session()
        most = self._most_bytes if most_bytes is None else most_bytes
        total = self._seconds if seconds is None else seconds
        where = f"{self.url}{path}"
        try:
            async with session.request(
                method,
                where,
                json=json,
                data=data,
                params=params,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=total),
                allow_redirects=False,
            ) as response:
                succeeded = 200 <= response.status < 300
                encoding = response.headers.get("Content-Encoding", "identity").lower()
                if encoding not in ("", "identity"):
                    raise InfrastructureError(
                        f"{where} compresses its answers ({encoding[:20]}), although asked not to"
                    )
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > (most if succeeded else MOST_REFUSAL):
                        if not succeeded:
                            break
                        raise InfrastructureError(
                            f"{where} answered more than {most:,} bytes; check the server"
                        )
                text = body.decode(errors="replace")
                return HttpAnswer(
                    response.status, text, _seconds(response.headers.get("Retry-After", ""))
                )
        except TimeoutError as e:
            spent = "" if total is None else f" within {total:g} s"
            raise TimedOut(f"{where} gave no whole answer{spent}") from e
        except (OSError, ValueError, aiohttp.ClientError) as e:
            # ValueError: an address or an answer that cannot be read
            raise NoAnswer(f"{where} gave no answer: {_one_line(e)}") from e

    @asynccontextmanager
    async def websocket(
        self, path: str, *, seconds: float, most_bytes: int = MOST_BYTES
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket.

        Args:
            seconds: that the server may take for the handshake.
            most_bytes: of a message.

        Raises:
            NoAnswer: nobody speaks WebSocket there.
        """
        session = self._started_session()
        where = f"{self.url}{path}"
        try:
            async with asyncio.timeout(seconds):
                socket = await session.ws_connect(
                    where,
                    max_msg_size=most_bytes,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
        except TimeoutError as e:
            raise TimedOut(f"{where} opened no WebSocket within {seconds:g} s") from e
        except (OSError, ValueError, aiohttp.ClientError) as e:
            raise NoAnswer(f"{where} opened no WebSocket: {_one_line(e)}") from e
        try:
            yield socket
        finally:
            await socket.close()

    def _started_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise InfrastructureError(f"the client of {self.url} is not started, or was closed")
        return self._session


def json_of(text: str, source: str) -> Any:
    """Return the value of a JSON text that *source* answered.

    Raises:
        InfrastructureError: no JSON, or of more than `DEEPEST` levels.
    """
    try:
        return read_json(text, deepest=DEEPEST)
    except ValueError as e:
        raise InfrastructureError(
            f"{source} answered no readable JSON: {_one_line(text[:1000])}"
        ) from e


def run_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of *coroutine*, run by an event loop in a thread of its own: for functions
    that cannot wait. Its requests need limits of their own.
    """
    with ThreadPoolExecutor(1, "quintain-http") as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def _refuse_redirect(
    session: aiohttp.ClientSession, context: Any, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    """Follow no redirect: it would carry a conversation, its answer or a key to a host that nobody
    named.
    """
    raise InfrastructureError(
        f"{redirect.url} answered {redirect.response.status}: redirects are not followed; give the "
        "final address"
    )


def _one_line(value: object, limit: int = 300) -> str:
    """Return *value* as one line without control characters, which a terminal would obey."""
    text = " ".join(str(value)[: 10 * limit].split()) or type(value).__name__
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _seconds(retry_after: str) -> float:
    """Return the seconds of a ``Retry-After`` header; its other form, a date, counts as none."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        return 0.0
