"""A server of the tools of episodes, by MCP."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import parse_qs

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from verifiers.v1.mcp import SharedToolServer

from .exchange import PlayerExchange

KEY = "exchange"
"""Parameter of an address that names the exchange."""


class _Uvicorn(uvicorn.Server):
    """A server within a program that has handlers of signals of its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EpisodeServer:
    """Serves the tools of all exchanges that run, as ``async with``. Each has an address of its
    own.
    """

    def __init__(self) -> None:
        self._exchanges: dict[str, PlayerExchange] = {}
        self._port = 0

    async def __aenter__(self) -> Self:
        server: Server[Any] = Server(
            "quintain", on_list_tools=self._listed, on_call_tool=self._called
        )
        app = server.streamable_http_app(json_response=True, stateless_http=True)
        listening = socket.create_server(("127.0.0.1", 0))
        self._port = listening.getsockname()[1]
        # Who connects before the server has begun waits in the queue of the socket.
        self._uvicorn = _Uvicorn(uvicorn.Config(app, log_level="warning", lifespan="on"))
        self._serving = asyncio.create_task(self._uvicorn.serve(sockets=[listening]))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._uvicorn.should_exit = True
        await self._serving

    def tools_of(self, exchange: PlayerExchange) -> dict[str, SharedToolServer]:
        """Return how an interaction of verifiers reaches the tools of *exchange*; their names have no
        prefix.
        """
        key = secrets.token_hex(16)
        self._exchanges[key] = exchange
        url = f"http://127.0.0.1:{self._port}/mcp?{KEY}={key}"
        return {"": SharedToolServer(url=url, local=True, external=True)}

    def forget(self, exchange: PlayerExchange) -> None:
        """Close the address of *exchange*, if it has one."""
        self._exchanges = {
            key: known for key, known in self._exchanges.items() if known is not exchange
        }

    def _exchange_of(self, context: Any) -> PlayerExchange:
        (key,) = parse_qs(context.request.url.query)[KEY]
        return self._exchanges[key]

    async def _listed(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=dict(tool.parameters),
                )
                for tool in self._exchange_of(context).tools
            ]
        )

    async def _called(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        arguments: Mapping[str, Any] = params.arguments or {}
        text = await self._exchange_of(context).call(params.name, arguments)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])
