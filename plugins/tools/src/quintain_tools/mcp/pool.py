"""The sessions with one server: a bounded number, replaced when they fail, with the tools they must
have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any

from mcp.types import Tool as McpTool

from quintain import InfrastructureError
from quintain.errors import UsageError

from .connection import CallRefused, Connection, SlowTool
from .declaration import McpServer
from .tool_list import ToolList, differences, tool_list

log = logging.getLogger("quintain.mcp")
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0
"""Seconds before a server that failed is started again; doubles with each failure in a row."""
PATIENCE = 10.0
"""Seconds after which an episode that still waits for a session is worth a warning."""


class ServerPool:
    """Hands out sessions: `shared` to anyone, `take` to one episode until `give_back`.

    Attributes:
        tools: pinned at the start.
        starts: sessions that were opened.
    """

    def __init__(self, name: str, server: McpServer) -> None:
        self.name, self.server = name, server
        self.tools = ToolList({})
        self.starts = 0
        self._open: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._slots = asyncio.Semaphore(server.size)
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._failures, self._last_failure, self._not_before = 0, "", 0.0
        self._changed = ""
        self._warned = self._is_stopping = False

    async def start(self) -> None:
        """Open the first session and pin its tools.

        Raises:
            InfrastructureError: the server does not work.
            UsageError: its tools cannot be offered.
        """
        connection = await self._connect()
        try:
            self.tools = tool_list(connection.tools, self.server, self.name)
        except UsageError:
            await connection.close()
            raise
        self._idle.append(connection)

    async def stop(self) -> None:
        """Close all sessions."""
        self._is_stopping = True
        while self._open or self._closing:  # a session that is given back meanwhile closes as well
            for connection in [*self._open]:
                self._retire(connection)
            await asyncio.wait(self._closing)

    def check(self) -> None:
        """Refuse a server whose tools changed.

        Raises:
            UsageError: names the tools; the run stops.
        """
        if self._changed:
            raise UsageError(self._changed)

    def expect(self, digests: Mapping[str, str]) -> None:
        """Compare the tools with those of a checkpoint.

        Raises:
            UsageError: they differ.
        """
        if changed := differences(digests, self.tools.digests()):
            raise UsageError(
                f"the tools of the MCP server {self.name!r} are not those with which the run began "
                f"({changed}); start the version of the server that it had, or begin a new run"
            )

    def succeeded(self) -> None:
        """Note that a call got its result: the failures before it no longer count."""
        self._failures = 0

    def failed(self, connection: Connection) -> None:
        """Replace a session if it is over."""
        if connection.failure and connection in self._open:
            self._retire(connection)
            self._note(connection.failure)

    async def shared(self) -> Connection:
        """Return the session with the fewest calls; reopened if too many have failed.

        Raises:
            InfrastructureError: the server does not work.
            UsageError: its tools changed.
        """
        while True:
            self.check()
            for connection in [c for c in self._idle if c.failure]:
                self.failed(connection)
            free = min(self._idle, key=lambda c: c.calls, default=None)
            if free is not None and (free.calls == 0 or len(self._idle) >= self.server.size):
                return free
            async with self._opening:
                if len([c for c in self._idle if not c.failure]) < self.server.size and not (
                    any(c.calls == 0 and not c.failure for c in self._idle)
                ):
                    self._idle.append(await self._checked())

    async def take(self) -> Connection:
        """Return a session for one episode alone; waits for one.

        Raises:
            InfrastructureError: the server does not work.
            UsageError: its tools changed.
        """
        self.check()
        await self._slot()
        try:
            while self._idle:
                connection = self._idle.popleft()
                if not connection.failure:
                    return connection
                self.failed(connection)
            return await self._checked()
        except BaseException:
            self._slots.release()
            raise

    def give_back(self, connection: Connection) -> None:
        """End what `take` began: in the background, the session is reset by its tool, else
        closed.
        """
        self._spawn(self._recover(connection))

    async def _recover(self, connection: Connection) -> None:
        try:
            if (
                self.server.reset
                and not connection.failure
                and not self._is_stopping
                and await self._reset(connection)
            ):
                self._idle.append(connection)
                return
            if connection.failure:
                self._note(connection.failure)
            self._open.discard(connection)
            await connection.close()
        finally:
            self._slots.release()

    async def _reset(self, connection: Connection) -> bool:
        try:
            result = await connection.call(self.server.reset, {})
        except (CallRefused, SlowTool, InfrastructureError) as e:
            # it is closed, and the next session is new
            log.warning(
                "the tool %r did not reset the MCP server %r: %s", self.server.reset, self.name, e
            )
            return False
        return not result.is_error

    async def _slot(self) -> None:
        if self._slots.locked() and not self._warned:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._slots.acquire()
                return
            except TimeoutError:
                if not self._warned:
                    self._warned = True
                    log.warning(
                        "episodes wait for one of the %d sessions of the MCP server %r, and a "
                        "reproducible engine waits for all episodes: set servers.%s.pool to the "
                        "number of concurrent episodes, or batch.concurrency to %d",
                        self.server.size, self.name, self.name, self.server.size,
                    )  # fmt: skip
        await self._slots.acquire()

    async def _checked(self) -> Connection:
        """Return a new session with the pinned tools."""
        while True:
            if self._failures > self.server.restarts:
                raise InfrastructureError(
                    f"the MCP server {self.name!r} failed {self._failures} times in a row "
                    f"(restarts); the last time: {self._last_failure}"
                )
            pause = self._not_before - asyncio.get_running_loop().time()
            if pause <= 0:
                break
            await asyncio.sleep(pause)
        try:
            connection = await self._connect()
        except InfrastructureError as e:
            self._note(str(e))
            raise
        self._compare(connection, connection.tools)
        if self._changed:
            self._retire(connection)
            self.check()
        return connection

    async def _connect(self) -> Connection:
        connection = Connection(self.name, self.server, self._compare)
        self.starts += 1
        self._open.add(connection)
        try:
            await connection.open()
        except BaseException:
            self._open.discard(connection)
            raise
        return connection

    def _compare(self, connection: Connection, listed: list[McpTool]) -> None:
        """Stop the run if the *listed* tools are not the pinned ones."""
        if not self.tools.tools:
            return
        try:
            now = tool_list(listed, self.server, self.name).digests()
        except UsageError as e:
            self._changed = f"the tools of the MCP server {self.name!r} changed during the run: {e}"
            return
        if changed := differences(self.tools.digests(), now):
            self._changed = (
                f"the tools of the MCP server {self.name!r} changed during the run ({changed}); "
                "what was learnt before and after would not compare. Stop the change, then resume "
                "or begin a new run"
            )

    def _note(self, reason: str) -> None:
        """Count a failure, unless it is of the same time as one that counts already."""
        now = asyncio.get_running_loop().time()
        self._last_failure = reason
        if now >= self._not_before:
            self._failures += 1
            self._not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1))

    def _retire(self, connection: Connection) -> None:
        """Close a session in the background."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._spawn(connection.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
