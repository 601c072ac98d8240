"""A session with an MCP server: opened, used from any task, closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from mcp import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    ToolListChangedNotification,
)
from mcp.types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from quintain import InfrastructureError

from .declaration import PLACE, McpServer
from .http_wire import HttpWire
from .stdio_wire import StdioWire
from .wire_errors import OVERSIZE, UNREACHABLE, UNREADABLE

log = logging.getLogger("quintain.mcp")
T = TypeVar("T")
PAGES = 100
"""Pages of a list of tools at most."""
PROBE_SECONDS = 5.0
"""How long a server that was slow gets to show that it lives."""
CLOSE_SECONDS = 15.0
"""How long a session may take to close; its wire takes less."""
LATE = 0.25
"""Seconds after its time at which a timer counts as late: the event loop was blocked, for instance
by an update.
"""


class CallRefused(Exception):
    """The server refused one call, or answered too much or what cannot be read; the message is its
    own, or says so.
    """


class SlowTool(Exception):
    """A call took too long, and the server lives."""


class Connection:
    """One session. A task of its own opens and closes it, since the scopes of anyio belong to
    tasks.

    Attributes:
        tools: what the server listed.
        failure: why the session is over; empty while it can be used.
        calls: calls that wait for an answer, or for their turn.
    """

    def __init__(
        self,
        name: str,
        server: McpServer,
        changed: Callable[[Connection, list[McpTool]], None] = lambda *_: None,
    ) -> None:
        self._folder = TemporaryDirectory(prefix="quintain-mcp-") if server.has_folder else None
        self._place = os.path.realpath(self._folder.name) if self._folder else ""
        server = server.placed(self._place)
        self.name, self.server, self._changed = name, server, changed
        self.tools: list[McpTool] = []
        self.failure = ""
        self.calls = 0
        self._turn = asyncio.Semaphore(server.concurrency)
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._client: Client | None = None
        limit = server.message_bytes
        self._wire: StdioWire | HttpWire
        if server.command:
            env, cwd = server.environment(name), server.cwd or None
            self._wire = StdioWire(
                server.command, env=env, cwd=cwd, limit=limit, on_end=self._stop.set
            )
        else:
            self._wire = HttpWire(server.url, headers=server.all_headers(name), limit=limit)

    async def open(self) -> None:
        """Start the server or reach it, and list its tools.

        Raises:
            InfrastructureError: it does not start, does not answer in time, or breaks the protocol.
        """
        self._owner = asyncio.create_task(self._own(), name=f"mcp {self.name}")
        try:
            await asyncio.wait({self._ready}, timeout=self.server.start_seconds)
            if not self._ready.done():
                self.failure = (
                    f"it did not list its tools within {self.server.start_seconds:g} s "
                    f"(start_seconds)"
                )
            if self._ready.done() and not self.failure:
                return
            error_text = self._wire.said()
            if error_text and error_text not in self.failure:
                self.failure = f"{self.failure}; {error_text}"
            verb = f"does not answer at {self.server.url}" if self.server.url else "does not start"
            raise InfrastructureError(f"the MCP server {self.name!r} {verb}: {self.failure}")
        except BaseException:
            await self.close()
            raise

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call *tool*.

        Raises:
            CallRefused: the server refused the call, or its answer is too long or cannot be read.
            SlowTool: it took longer than `McpServer.seconds`.
            InfrastructureError: the server is dead, or broke the protocol; the session is over.
        """
        self.calls += 1
        try:
            async with self._turn:
                return await self._call(tool, arguments)
        finally:
            self.calls -= 1

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        if self.failure or self._client is None:
            raise self._over()
        session = self._client.session
        try:
            result = await within(
                self.server.seconds,
                session.call_tool(tool, dict(arguments), allow_input_required=True),
            )
        except TimeoutError:
            return await self._judge_slow(tool)
        except MCPError as e:
            if e.code == OVERSIZE:
                raise CallRefused(f"{e.message} (message_bytes)") from e
            if e.code == UNREADABLE:
                raise CallRefused(e.message) from e
            if e.code in (UNREACHABLE, CONNECTION_CLOSED):
                raise self._fail(
                    e.message if e.code == UNREACHABLE else "the connection broke off"
                ) from e
            raise CallRefused(e.message) from e
        except ValidationError as e:
            raise CallRefused(f"the result cannot be read: {_first(e)}") from e
        except RuntimeError as e:
            # what the SDK raises for a result that does not fit the tool's own schema
            raise CallRefused(f"the tool returned an invalid result: {_first(e)}") from e
        if isinstance(result, InputRequiredResult):
            raise CallRefused("the tool asks for input, which nobody here can give")
        return result

    async def _judge_slow(self, tool: str) -> CallToolResult:
        """Find out after a time-out whether it was the tool, or the server."""
        slow = f"the tool {tool!r} took over {self.server.seconds:g} s"
        alive = True
        try:
            assert self._client is not None
            await within(PROBE_SECONDS, self._client.session.list_tools())
        except MCPError as e:
            alive = e.code not in (UNREACHABLE, CONNECTION_CLOSED)
        except (TimeoutError, ValidationError):
            alive = False
        if not alive:
            failure = self._fail(f"{slow}, and the server does not answer")
        if self.server.on_timeout == "message" or (alive and self.server.on_timeout == "auto"):
            raise SlowTool(slow)
        raise InfrastructureError(f"the MCP server {self.name!r}: {slow}") if alive else failure

    async def close(self) -> None:
        """End the session, and the server if it is a process of ours."""
        self.failure = self.failure or "it was closed"
        self._stop.set()
        if self._owner is None:
            return
        if not self._ready.done():
            self._owner.cancel()
        for _ in range(2):
            if (await asyncio.wait({self._owner}, timeout=CLOSE_SECONDS))[0]:
                return
            self._owner.cancel()
        log.warning("the session with the MCP server %r does not close", self.name)

    async def _own(self) -> None:
        try:
            async with Client(
                self._wire,
                mode=self.server.protocol,
                cache=None,
                message_handler=self._hear,
                client_info=Implementation(name="quintain", version=version("quintain-tools")),
            ) as client:
                self._client = client
                self.tools = await self._list()
                if not self._ready.done():
                    self._ready.set_result(None)
                listening = asyncio.create_task(self._listen(client))
                try:
                    await self._stop.wait()
                finally:
                    listening.cancel()
                    await asyncio.wait({listening})
                    for task in self._background:
                        task.cancel()
                self.failure = self.failure or self._wire.failure or "it was closed"
        except BaseException as e:  # whatever it is, those who wait must hear of it
            self.failure = self.failure or self._wire.failure or reason_of(e)
            if isinstance(e, (KeyboardInterrupt, SystemExit)):
                raise
        finally:
            self._client = None
            if self._folder is not None:
                self._folder.cleanup()
            if not self._ready.done():
                self._ready.set_result(None)

    async def _list(self) -> list[McpTool]:
        assert self._client is not None
        tools: list[McpTool] = []
        cursor = None
        for _ in range(PAGES):
            page = await self._client.list_tools(cursor=cursor)
            tools += map(self._without_place, page.tools)
            if page.next_cursor in (None, cursor):
                break
            cursor = page.next_cursor
        return tools

    def _without_place(self, tool: McpTool) -> McpTool:
        """Return *tool* as every session lists it, wherever its folder is."""
        if not self._place:
            return tool
        text = tool.model_dump_json(by_alias=True, exclude_unset=True)
        return McpTool.model_validate_json(text.replace(self._place, PLACE))

    async def _hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._spawn(self._list_again())

    async def _listen(self, client: Client) -> None:
        """Listen for a changed list, which newer servers announce to those who ask for it."""
        capabilities = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (
            capabilities and capabilities.list_changed
        ):
            return
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    await self._list_again()
        except MCPError as e:
            log.debug("the MCP server %r takes no subscription: %s", self.name, e)
        except SubscriptionLost:  # a new session lists the tools again
            self._fail("its stream of notifications broke off")

    async def _list_again(self) -> None:
        try:
            tools = await within(self.server.start_seconds, self._list())
        except (MCPError, TimeoutError, ValidationError) as e:
            self._fail(
                f"it announced a change of its tools, and does not list them: {reason_of(e)}"
            )
            return
        self._changed(self, tools)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _fail(self, reason: str) -> InfrastructureError:
        """End the session because of *reason*; the error to raise."""
        self.failure = self.failure or self._wire.failure or reason
        self._stop.set()
        return self._over()

    def _over(self) -> InfrastructureError:
        return InfrastructureError(f"the MCP server {self.name!r} failed: {self.failure}")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Return what *work* returns, if it takes at most *seconds*.

    A timer that rings late says nothing about the server, whose answer may lie in a pipe; so it is
    set again.

    Raises:
        TimeoutError: *work* took longer; it is cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    due = loop.time() + seconds
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done() and (late := loop.time() - due) > LATE:
            await asyncio.wait({task}, timeout=min(late, seconds))
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task}, timeout=CLOSE_SECONDS)


def reason_of(error: BaseException) -> str:
    """Return the message of *error*; of a group of errors that of its first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _first(error) or type(error).__name__


def _first(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return (
        str(error)[:300]
        if isinstance(error, InfrastructureError)
        else " ".join(str(error).split())[:300]
    )
