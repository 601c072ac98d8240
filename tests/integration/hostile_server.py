"""A server that misbehaves on the level of HTTP, in all the ways that `MISBEHAVIOURS` names.

It answers what it is asked honestly, but for the one path that a test names. It counts what it has
sent there: a client that stops reading is bounded, whatever its clock says.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LARGEST = 200_000
"""Bytes of an answer that clients of the kit take."""
SENT_AT_MOST = 100_000_000
"""Bytes that a client may let the server send: the limit, and what buffers on the way hold."""


@dataclass
class Exchange:
    """A request whose answer misbehaves.

    Attributes:
        honest: the body of the right answer.
        elsewhere: address of a server that nobody named.
        sent: bytes so far.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    honest: bytes
    elsewhere: str
    sent: int = 0

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        self.sent += len(data)
        await self.writer.drain()

    async def answer(self, body: bytes, *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", *headers]
        if not any(h.lower().startswith("content-type") for h in headers):
            lines.append("Content-Type: application/json")
        if not any(h.lower().startswith(("content-length", "transfer-enc")) for h in headers):
            lines.append(f"Content-Length: {len(body)}")
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def forever(self, piece: bytes, pause: float = 0.0) -> None:
        while self.sent < SENT_AT_MOST:
            await self.write(piece)
            await asyncio.sleep(pause)


Misbehaviour = Callable[[Exchange], Awaitable[None]]
MISBEHAVIOURS: dict[str, Misbehaviour] = {}


def misbehaviour(function: Misbehaviour) -> Misbehaviour:
    """Add *function*, whose name is its own."""
    MISBEHAVIOURS[function.__name__] = function
    return function


def _named(name: str, function: Misbehaviour) -> None:
    MISBEHAVIOURS[name] = function


# -- connections


@misbehaviour
async def closes_at_once(x: Exchange) -> None:
    x.writer.close()


@misbehaviour
async def resets(x: Exchange) -> None:
    x.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    x.writer.transport.abort()


@misbehaviour
async def is_silent(x: Exchange) -> None:
    await asyncio.sleep(30)


@misbehaviour
async def drips_the_status(x: Exchange) -> None:
    await x.forever(b"H", 0.02)


@misbehaviour
async def drips_headers(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\n")
    await x.forever(b"a: b\r\n", 0.02)


@misbehaviour
async def drips_the_body(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    await x.forever(b" ", 0.02)


@misbehaviour
async def dies_in_the_body(x: Exchange) -> None:
    await x.answer(x.honest[: len(x.honest) // 2], f"Content-Length: {len(x.honest)}")


@misbehaviour
async def hangs_in_the_body(x: Exchange) -> None:
    await x.answer(x.honest[: len(x.honest) // 2], f"Content-Length: {len(x.honest)}")
    await asyncio.sleep(30)


@misbehaviour
async def dies_in_a_chunk(x: Exchange) -> None:
    await x.answer(b"ffff\r\n" + x.honest, "Transfer-Encoding: chunked")


@misbehaviour
async def half_closes(x: Exchange) -> None:
    x.writer.write_eof()
    await asyncio.sleep(30)


# -- size


@misbehaviour
async def endless_body(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    await x.forever(b" " * 65536)


@misbehaviour
async def endless_chunks(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await x.forever(b"10000\r\n" + b" " * 65536 + b"\r\n")


@misbehaviour
async def endless_tiny_chunks(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await x.forever(b"1\r\n \r\n" * 1000)


@misbehaviour
async def a_terabyte(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n")
    await x.forever(b" " * 65536)


@misbehaviour
async def endless_headers(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\n")
    await x.forever(b"x: " + b"y" * 4000 + b"\r\n")


@misbehaviour
async def endless_header_line(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nx: ")
    await x.forever(b"y" * 65536)


@misbehaviour
async def endless_reason(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 ")
    await x.forever(b"y" * 65536)


@misbehaviour
async def endless_trailers(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    await x.forever(b"x: " + b"y" * 4000 + b"\r\n")


@misbehaviour
async def flood_of_1xx(x: Exchange) -> None:
    await x.forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.001)


@misbehaviour
async def flood_of_early_hints(x: Exchange) -> None:
    await x.forever(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100, 0.001)


@misbehaviour
async def flood_of_cookies(x: Exchange) -> None:
    cookies = [f"Set-Cookie: c{i}={'y' * 50}; Max-Age=99999999999999" for i in range(90)]
    await x.answer(x.honest, *cookies)


@misbehaviour
async def endless_error(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\n")
    await x.forever(b'{"error": ' * 6554)


@misbehaviour
async def large_error(x: Exchange) -> None:
    await x.answer(b'{"error": {"message": "' + b"e" * 5_000_000 + b'"}}', status="400 Bad")


@misbehaviour
async def gzip_bomb(x: Exchange) -> None:
    await x.answer(gzip.compress(b" " * 50_000_000), "Content-Encoding: gzip")


@misbehaviour
async def deflate_bomb(x: Exchange) -> None:
    await x.answer(zlib.compress(b" " * 50_000_000), "Content-Encoding: deflate")


@misbehaviour
async def gzip_twice(x: Exchange) -> None:
    body = gzip.compress(gzip.compress(b" " * 50_000_000))
    await x.answer(body, "Content-Encoding: gzip, gzip")


@misbehaviour
async def brotli(x: Exchange) -> None:
    await x.answer(x.honest, "Content-Encoding: br")


@misbehaviour
async def zstd(x: Exchange) -> None:
    await x.answer(x.honest, "Content-Encoding: zstd")


@misbehaviour
async def says_gzip_and_is_none(x: Exchange) -> None:
    await x.answer(x.honest, "Content-Encoding: gzip")


# -- no HTTP


def _raw(name: str, data: bytes) -> None:
    async def send(x: Exchange) -> None:
        await x.write(data)

    _named(name, send)


_raw("speaks_ssh", b"SSH-2.0-OpenSSH_9.6\r\n")
_raw("speaks_tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60)
_raw("sends_zeros", b"\0" * 1000)
_raw("http_0_9", b"<html>hello</html>")
_raw("http_9", b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\n{}")
_raw("status_abc", b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\n{}")
_raw("status_negative", b"HTTP/1.1 -200 OK\r\nContent-Length: 2\r\n\r\n{}")
_raw("status_of_digits", b"HTTP/1.1 " + b"9" * 5000 + b" OK\r\n\r\n")
_raw("length_negative", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")
_raw("length_of_digits", b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}")
_raw("length_twice", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}")
_raw(
    "chunk_of_no_size",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
)
_raw(
    "chunk_negative", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n"
)
_raw(
    "chunk_of_digits",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\n{}",
)
_raw(
    "smuggles",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
)
_raw("header_without_colon", b"HTTP/1.1 200 OK\r\nthis is none\r\nContent-Length: 2\r\n\r\n{}")
_raw("header_with_zero", b"HTTP/1.1 200 OK\r\nx: a\0b\r\nContent-Length: 2\r\n\r\n{}")
_raw("header_folded", b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\nContent-Length: 2\r\n\r\n{}")
_raw(
    "switches_protocols",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
)
_raw("wants_a_proxy", b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")


# -- statuses


def _status(status: int, body: bytes = b'{"error": {"message": "no"}}', *headers: str) -> None:
    async def send(x: Exchange) -> None:
        await x.answer(body, *headers, status=f"{status} Whatever")

    _named(
        "_".join([f"status_{status}", *[h.partition(":")[2].strip()[:12] for h in headers]]), send
    )


for _number in (400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 418, 422, 425, 451):
    _status(_number)
for _number in (500, 501, 502, 503, 504, 507, 511, 520, 524, 529, 599, 600, 999):
    _status(_number)
for _number in (202, 203, 205, 206, 226):
    _status(_number)
_status(204, b"")
_status(304, b"")
for _wait in ("86400", "1e308", "nan", "inf", "-1", "soon", "Wed, 21 Oct 2099 07:28:00 GMT"):
    _status(429, b"{}", f"Retry-After: {_wait}")
    _status(503, b"{}", f"Retry-After: {_wait}")


def _redirect(status: int, to: str) -> None:
    async def send(x: Exchange) -> None:
        await x.answer(b"", f"Location: {to.format(x.elsewhere)}", status=f"{status} Moved")

    _named(f"redirects_{status}_{to[:8]}", send)


for _number in (300, 301, 302, 303, 305, 307, 308):
    _redirect(_number, "{}/taken")
_redirect(302, "/same")
_redirect(307, "//[::1")
_redirect(307, "file:///etc/passwd")
_redirect(301, "")


# -- bodies


def _body(name: str, body: bytes, *headers: str) -> None:
    async def send(x: Exchange) -> None:
        await x.answer(body, *headers)

    _named(name, send)


_body("empty", b"")
_body("html", b"<!doctype html><title>502 Bad Gateway</title>")
_body("null", b"null")
_body("a_number", b"5")
_body("a_text", b'"yes"')
_body("a_list", b"[]")
_body("an_object", b"{}")
_body("nan", b"NaN")
_body("true", b"true")
_body("deep_lists", b"[" * 100_000)
_body("deep_objects", b'{"a":' * 20_000)
_body("closed_deep_lists", b"[" * 5_000 + b"]" * 5_000)
_body("digits", b"9" * 100_000)
_body("exponent", b'{"choices": 1e999999999}')
_body("no_utf8", b'{"a": "\xff\xfe\x80"}')
_body("utf16", '{"a": 1}'.encode("utf-16"))
_body("surrogates", b'{"choices": "\\ud800"}')
_body("bom", b"\xef\xbb\xbf{}")
_body("escapes", b'\x1b[2J\x1b]0;owned\x07{"a"')
_body("half", b'{"choices": [')
_body("two_values", b"{} {}")
_body("error_with_status_200", b'{"error": {"message": "out of memory", "code": 500}}')
_body("error_as_text", b'{"error": "boom"}')
_body("detail", b'{"detail": [{"loc": ["body"], "msg": "field required"}]}')
_body("events", b'data: {"choices": []}\n\ndata: [DONE]\n\n', "Content-Type: text/event-stream")


@misbehaviour
async def trailing_garbage(x: Exchange) -> None:
    await x.answer(x.honest)
    await x.write(b"garbage" * 1000)


@misbehaviour
async def two_answers_in_one_packet(x: Exchange) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(x.honest)}\r\n\r\n".encode()
    await x.write(head + x.honest + head + b" " * len(x.honest))


@dataclass
class HostileServer:
    """An HTTP server on 127.0.0.1 that answers by path.

    Args:
        honest: bodies of right answers by path, as values of JSON; where a path has several
            answers, a function of the request's body that returns a name in place of the path, and
            the answer.
        hostile: the path or name whose answers misbehave, as *how*.

    Attributes:
        url: of it.
        sent: bytes of misbehaving answers.
        asked: how often the path was asked for.
        taken: requests that reached the server that nobody named.
    """

    honest: Mapping[str, Any]
    hostile: str
    how: Misbehaviour
    url: str = ""
    sent: int = 0
    asked: int = 0
    taken: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[HostileServer]:
        other = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self._elsewhere = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
        own = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{own.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            own.close()
            other.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while request := await self._request(reader):
                target, content = request
                path = target.partition("?")[0]
                answer = self.honest.get(path, {})
                if callable(answer):
                    path, answer = answer(content)
                body = json.dumps(answer).encode()
                exchange = Exchange(reader, writer, body, self._elsewhere)
                if path != self.hostile:
                    await exchange.answer(body)
                    continue
                self.asked += 1
                try:
                    await self.how(exchange)
                finally:
                    self.sent += exchange.sent
                return
        except (
            asyncio.CancelledError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ConnectionError,
        ):
            return  # the client has gone, as it should, or the test has ended
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
        """The path and the body of the next request, once it was read."""
        line = await reader.readline()
        if not line:
            return None
        length = 0
        while (header := await reader.readline()).strip():
            name, _, value = header.decode("latin-1").partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return line.split()[1].decode(), await reader.readexactly(length)


def mcp_answer(content: bytes) -> tuple[str, Any]:
    """The method of a message of MCP, and its answer."""
    message = json.loads(content or b"{}")
    method, number = message.get("method", ""), message.get("id")
    info = {"name": "kit", "version": "1"}
    tool = {"name": "greet", "inputSchema": {"type": "object"}}
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": info,
        },
        "tools/list": {"tools": [tool]},
        "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    }
    if method in results:
        return method, {"jsonrpc": "2.0", "id": number, "result": results[method]}
    error = {"code": -32601, "message": "no such method"}
    return method, {"jsonrpc": "2.0", "id": number, "error": error}
