"""The service `mcp`: tools of MCP servers, for environments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from mcp.types import CallToolResult, TextContent

from quintain import InfrastructureError, Service, Tool
from quintain.errors import ToolError, UnknownNameError, UsageError
from quintain.types import levels

from .connection import CallRefused, Connection, SlowTool
from .declaration import McpServer
from .fence import unescaped
from .pool import ServerPool
from .result import McpResult, read_result, refused
from .tool_list import RemoteTool, ToolList, differences

DEPTH = 64
"""Levels of nesting in the arguments of a call."""


class Mcp(Service):
    """MCP servers and their tools::

        [services.mcp]
        use = "mcp"
        args = { servers = { search = { command = ["quintain-search-server", "corpus.jsonl"] } } }

    An environment asks for it with ``mcp: Mcp = need()`` and offers the tools to the policy::

        async with self.mcp.session() as session:
            turn = await agent.run(*session.tools)

    The tools of a run are pinned: if a server lists others later, also after a resume, the run
    stops with a `UsageError` that names them.
    """

    def __init__(self, *, servers: Mapping[str, McpServer]) -> None:
        if not servers:
            raise UsageError(
                'the service mcp has no servers: add args.servers.NAME = { command = ["program", '
                "...] }"
            )
        for name, server in servers.items():
            if not isinstance(server, McpServer):
                raise UsageError(
                    f"servers.{name} is a {type(server).__name__}; expected McpServer(command=... "
                    f"or url=...)"
                )
            server.check(name)
        self._servers = servers
        self._pools: dict[str, ServerPool] = {}

    async def __aenter__(self) -> Self:
        pools = {name: ServerPool(name, server) for name, server in self._servers.items()}
        outcomes = await asyncio.gather(
            *(pool.start() for pool in pools.values()), return_exceptions=True
        )
        self._pools = pools
        try:
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome
            _check_names(pools)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        pools, self._pools = self._pools, {}
        await asyncio.gather(*(pool.stop() for pool in pools.values()))

    def state(self) -> Mapping[str, Any]:
        return {"tools": {name: pool.tools.digests() for name, pool in self._pools.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Compare the servers' tools with those of the checkpoint.

        Raises:
            UsageError: they differ.
        """
        names = differences(dict.fromkeys(state["tools"], ""), dict.fromkeys(self._pools, ""))
        if names:
            raise UsageError(
                f"the MCP servers are not those with which the run began ({names}); begin a new run"
            )
        for name, digests in state["tools"].items():
            self._pools[name].expect(digests)

    @property
    def tools(self) -> Mapping[str, ToolList]:
        """The tools of each server."""
        return {name: pool.tools for name, pool in self._pools.items()}

    @asynccontextmanager
    async def session(self, *servers: str) -> AsyncIterator[McpSession]:
        """Open the tools for one episode: of the named *servers*, or of all.

        A server with ``session = "episode"`` gets its session at the first call of one of its
        tools.

        Raises:
            UsageError: there is no such server, or the tools of one changed.
        """
        if not self._pools:
            raise UsageError("mcp is not started; use 'async with Mcp(servers=...) as mcp:'")
        for name in servers:
            if name not in self._pools:
                raise UnknownNameError.of("MCP server", name, self._pools)
        chosen = [self._pools[name] for name in servers or self._pools]
        for pool in chosen:
            pool.check()
        session = McpSession(chosen)
        try:
            yield session
        finally:
            session.close()


class McpSession:
    """The tools of servers, for one episode; made by `Mcp.session`.

    Attributes:
        tools: for ``agent.run(*session.tools)``.
    """

    def __init__(self, pools: Sequence[ServerPool]) -> None:
        self._pools = pools
        self._tools: dict[str, tuple[ServerPool, RemoteTool]] = {
            tool.spec.name: (pool, tool) for pool in pools for tool in pool.tools.tools.values()
        }
        # Its own limits come first, and a fence must not be cut open.
        self.tools = tuple(
            Tool(
                spec=tool.spec,
                call=partial(self._shown, name),
                characters=2 * pool.server.characters + 1000,
            )
            for name, (pool, tool) in self._tools.items()
        )
        self._own: dict[str, Connection] = {}
        self._taking = asyncio.Lock()
        self._is_closed = False

    def choose(self, *names: str, server: str = "") -> tuple[Tool, ...]:
        """Return the tools with these *names*, or all of *server*.

        Raises:
            UsageError: there is no such tool or server.
        """
        if server and server not in {pool.name for pool in self._pools}:
            raise UnknownNameError.of("MCP server", server, [pool.name for pool in self._pools])
        for name in names:
            if name not in self._tools:
                raise UnknownNameError.of("tool", name, self._tools)
        return tuple(
            tool
            for tool in self.tools
            if (not names or tool.spec.name in names)
            and server in ("", self._tools[tool.spec.name][0].name)
        )

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> McpResult:
        """Call the tool *name*, as the model would.

        A call is sent once; again only if its server died, all episodes share it, and it declares
        the tool read-only or idempotent.

        Raises:
            InfrastructureError: the server is dead, or breaks the protocol.
            UsageError: there is no such tool, or the tools of its server changed.
        """
        if name not in self._tools:
            raise UnknownNameError.of("tool", name, self._tools)
        pool, tool = self._tools[name]
        server, arguments = pool.server, arguments or {}
        if problem := _unsendable(arguments, server.message_bytes):
            return refused(problem)
        shared = server.session == "shared"
        again = shared and tool.repeatable
        while True:
            pool.check()
            connection = await (pool.shared() if shared else self._connection(pool))
            try:
                result = await connection.call(tool.name, arguments)
            except SlowTool as e:
                return refused(str(e))
            except CallRefused as e:
                result = CallToolResult(
                    content=[TextContent(type="text", text=str(e))], is_error=True
                )
            except InfrastructureError:
                if shared:
                    pool.failed(connection)
                if not again or not connection.failure:  # it took too long, and would again
                    raise
                again = False
                continue
            pool.succeeded()
            return read_result(result, name, server.characters, fence=server.fence)

    def close(self) -> None:
        """Give back the sessions of this episode."""
        self._is_closed = True
        for pool in self._pools:
            if pool.name in self._own:
                pool.give_back(self._own.pop(pool.name))

    async def _shown(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._tools[name][0].server.fence:
            arguments = unescaped(arguments)
        result = await self.call(name, arguments)
        if result.failed:
            raise ToolError(result.shown)
        return result.shown

    async def _connection(self, pool: ServerPool) -> Connection:
        """Return the episode's own session with a server. All are taken at once, in one order: else
        two episodes could each hold the session that the other one waits for.
        """
        async with self._taking:
            if self._is_closed:
                raise UsageError(
                    "a tool was called after its session ended; call it within 'async with "
                    "mcp.session()'"
                )
            if not self._own:
                taken: dict[str, Connection] = {}
                episode_pools = [p for p in self._pools if p.server.session == "episode"]
                try:
                    for p in sorted(episode_pools, key=lambda p: p.name):
                        taken[p.name] = await p.take()
                except BaseException:
                    for p in episode_pools:
                        if p.name in taken:
                            p.give_back(taken[p.name])
                    raise
                self._own = taken
        return self._own[pool.name]


def _check_names(pools: Mapping[str, ServerPool]) -> None:
    owners: dict[str, str] = {}
    for server, pool in pools.items():
        for tool in pool.tools.tools.values():
            if (owner := owners.setdefault(tool.spec.name, server)) != server:
                raise UsageError(
                    f"the MCP servers {owner!r} and {server!r} both have a tool "
                    f"{tool.spec.name!r}; "
                    f'add servers.{server}.prefix = "{server}_", or choose tools with '
                    f"servers.{server}.tools"
                )


def _unsendable(arguments: Mapping[str, Any], limit: int) -> str:
    """Return why *arguments*, which the policy wrote, cannot be sent; empty if they can."""
    try:
        size = len(json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, TypeError, RecursionError):
        return "the arguments are no valid JSON"
    if size > limit:
        return f"the arguments have {size:,} bytes; at most {limit:,} are sent"
    for depth, level in enumerate(levels(arguments)):
        if depth >= DEPTH and any(isinstance(value, (Mapping, list, tuple)) for value in level):
            return f"the arguments are nested more than {DEPTH} levels deep"
    return ""
