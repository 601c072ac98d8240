"""The wire to an MCP server in a process: lines of JSON on its standard streams, each of bounded
size.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from quintain import InfrastructureError
from quintain_sandbox import guarded

from .wire_errors import ENDS, answered, oversize, unreadable

log = logging.getLogger("quintain.mcp")
CHUNK = 1 << 16
STDERR = 4096
"""Bytes of the server's standard error that errors can show."""
MOST_GARBAGE = 1000
"""Lines on standard output that are no messages, one after the other, until the server counts as
broken.
"""
STOP_SECONDS, TERM_SECONDS, KILL_SECONDS = 2.0, 1.0, 4.0
"""How long a server may take to end after its input ended, and then after SIGTERM; how long its
guard may take.
"""
_NOTIFICATION = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:')

Incoming = SessionMessage | Exception


class StdioWire:
    """A transport of the `mcp` SDK: entering it starts the server and gives the streams of its
    messages.

    A longer message than *limit* bytes is not held: its request gets an error
    (`wire_errors.OVERSIZE`), where the request can be told from the message's ends; else the wire
    ends. Lines that are no messages are skipped.

    Attributes:
        failure: why the wire ended; empty while it works.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        limit: int,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._argv, self._env, self._cwd, self._limit, self._on_end = argv, env, cwd, limit, on_end
        self.failure = ""
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr = b""
        self._garbage: list[str] = []
        self._pending: set[Any] = set()  # ids of requests without an answer
        self._stopping = False

    async def __aenter__(
        self,
    ) -> tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *guarded(self._argv, grace=TERM_SECONDS),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(self._env), cwd=self._cwd, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as e:
            raise InfrastructureError(f"{self._argv[0]!r} cannot be started: {e}") from e
        self._inbound, inbound = anyio.create_memory_object_stream[Incoming](0)
        outbound, self._outbound = anyio.create_memory_object_stream[SessionMessage](0)
        self._ours = (inbound, outbound)
        self._tasks = [
            asyncio.create_task(work()) for work in (self._read, self._write, self._read_stderr)
        ]
        return inbound, outbound

    async def __aexit__(self, *exc: object) -> None:
        """Close the server's input, wait for its end, then SIGTERM and SIGKILL."""
        assert self._process is not None
        self._stopping = True
        for stream in self._ours:
            stream.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        waits = (
            (STOP_SECONDS, self._process.terminate),
            (KILL_SECONDS, self._process.kill),
            (KILL_SECONDS, None),
        )
        try:
            for seconds, then in waits:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._process.wait()
                        break
                if then is not None:
                    with contextlib.suppress(ProcessLookupError):
                        then()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()  # the guard kills the server
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for stream in (self._inbound, self._outbound):
                stream.close()
            self._process._transport.close()  # type: ignore[attr-defined]  # a descendant could hold a pipe

    def said(self) -> str:
        """Return what the server wrote that is no message, for errors: the end of stderr, and
        garbage on stdout.
        """
        parts = []
        if self._garbage:
            parts.append(f"it wrote to stdout what is no JSON-RPC message: {self._garbage[0]!r}")
        if text := self._stderr.decode("utf-8", "replace").strip():
            parts.append(f"stderr ends with:\n{text[-1500:]}")
        return "; ".join(parts)

    async def _write(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            async for item in self._outbound:
                if isinstance(item.message, JSONRPCRequest):
                    self._pending.add(item.message.id)
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()
        except OSError:  # it ended; the reader finds out why
            self._outbound.close()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        # bytes are dropped of a message that is too long
        received, dropped, head = bytearray(), 0, b""
        failure = ""
        try:
            while not failure and (chunk := await self._process.stdout.read(CHUNK)):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    received += line
                    if (size := dropped + len(received)) > self._limit:
                        failure = await self._skip(
                            head or bytes(received[:ENDS]), bytes(received[-ENDS:]), size
                        )
                    else:
                        failure = await self._take(bytes(received))
                    received, dropped, head = bytearray(), 0, b""
                    if failure:
                        break
                received += rest
                if dropped + len(received) > self._limit:
                    head = head or bytes(received[:ENDS])
                    dropped += max(0, len(received) - ENDS)
                    del received[:-ENDS]
        except OSError as e:
            failure = str(e)
        self.failure = failure or "the server ended"
        if not failure and not self._stopping:
            await self._explain()
        self._inbound.close()
        self._on_end()
        while failure and await self._process.stdout.read(CHUNK):
            pass  # it could not end while the pipe is full

    async def _take(self, line: bytes) -> str:
        """Pass on one line; what is wrong with the wire, if anything."""
        line = line.removeprefix(BOM_UTF8)
        if not line.strip():
            return ""
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            number = answered(line, line)
            if number is not None and number in self._pending:
                await self._answer(number, unreadable())
                return ""
            self._garbage.append(line[:80].decode("utf-8", "replace"))
            if len(self._garbage) == 1:
                log.warning(
                    "a server wrote to stdout what is no message: %r (%s)",
                    self._garbage[0],
                    self._argv[0],
                )
            return "" if len(self._garbage) < MOST_GARBAGE else "the server writes garbage"
        self._garbage.clear()
        if isinstance(message, (JSONRPCResponse, JSONRPCError)):
            self._pending.discard(message.id)
        await self._deliver(SessionMessage(message))
        return ""

    async def _skip(self, head: bytes, tail: bytes, size: int) -> str:
        """Answer the request whose answer was too long; what is wrong with the wire, if it cannot
        be told.
        """
        if _NOTIFICATION.match(head):
            return ""
        number = answered(head, tail)
        ids = self._pending if number is None else {number}
        if len(ids) > 1:
            return (
                f"the server sent a message of {size:,} bytes; at most {self._limit:,} are read "
                f"(message_bytes)"
            )
        for number in ids & self._pending:
            await self._answer(number, oversize(size, self._limit))
        return ""

    async def _answer(self, number: int, error: ErrorData) -> None:
        """Answer a request in the server's place."""
        self._pending.discard(number)
        await self._deliver(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error)))

    async def _deliver(self, message: SessionMessage) -> None:
        # the session is gone
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._inbound.send(message)

    async def _read_stderr(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(CHUNK):
            self._stderr = (self._stderr + chunk)[-STDERR:]

    async def _explain(self) -> None:
        """Add exit status and stderr to the failure, which arrive a moment after the end of
        stdout.
        """
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                status = await self._process.wait()
                self.failure += f" with status {status}"
                await asyncio.wait({self._tasks[2]}, timeout=0.5)
        self.failure = "; ".join(filter(None, (self.failure, self.said())))
