"""The service `mcp` with real servers, over stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quintain import ToolCall
from quintain.errors import InfrastructureError, ToolError, UsageError
from quintain_tools.mcp import Mcp, McpServer

from .servers import TOOL_SERVER, tools_over_http

STDIO = McpServer(command=TOOL_SERVER)


@asynccontextmanager
async def running(**servers: McpServer) -> AsyncIterator[Mcp]:
    async with Mcp(servers=servers) as mcp:
        yield mcp


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tools_over_http() as (url, _):
        yield url


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> McpServer:
    return STDIO if request.param == "stdio" else McpServer(url=request.getfixturevalue("url"))


@pytest.mark.more
def test_tools_and_results(server: McpServer) -> None:
    """Tools have name, description and schema; results, errors of tools and refused calls are
    text.
    """

    async def run() -> None:
        async with running(tools=server) as mcp, mcp.session() as session:
            tools = {tool.spec.name: tool for tool in session.tools}
            assert tools["add"].spec.description == "The sum of two numbers."
            assert tools["add"].spec.parameters["required"] == ["a", "b"]
            assert await tools["add"].call({"a": 1, "b": 2}) == "3"
            failed = await tools["fail"].run(ToolCall(name="fail", arguments={"reason": "no ink"}))
            assert (failed.error or "").startswith("error: Error")
            assert "no ink" in (failed.error or "")
            with pytest.raises(ToolError, match="Field required"):
                await tools["add"].call({"a": 1})
            assert tuple(t.spec.name for t in session.choose("fail", "add")) == ("add", "fail")
            with pytest.raises(UsageError, match=r"unknown tool 'ad'; did you mean 'add'\?"):
                session.choose("ad")

    asyncio.run(run())


def test_several_servers_at_once(url: str) -> None:
    """Equal names are told apart by a prefix; a session may have the tools of some servers only."""

    async def run() -> None:
        async with running(
            local=STDIO, web=McpServer(url=url, prefix="web_", tools=("echo", "add"))
        ) as mcp:
            async with mcp.session() as session:
                assert tuple(t.spec.name for t in session.choose(server="web")) == (
                    "web_add",
                    "web_echo",
                )
                calls: list[Any] = [
                    session.call(name, {"text": name}) for name in ("echo", "web_echo")
                ]
                assert [result.text for result in await asyncio.gather(*calls)] == [
                    "echo",
                    "web_echo",
                ]
            async with mcp.session("web") as session:
                assert [t.spec.name for t in session.tools] == ["web_add", "web_echo"]
            with pytest.raises(UsageError, match="unknown MCP server 'wbe'"):
                async with mcp.session("wbe"):
                    pass
        with pytest.raises(
            UsageError, match=r"'local' and 'web' both have a tool 'add'; add servers.web.prefix"
        ):
            async with running(local=STDIO, web=McpServer(url=url)):
                pass

    asyncio.run(run())


def test_a_table_in_place_of_a_server_is_refused() -> None:
    servers: Any = {"one": {"command": ["program"]}}
    with pytest.raises(
        UsageError,
        match=re.escape("servers.one is a dict; expected McpServer(command=... or url=...)"),
    ):
        Mcp(servers=servers)


@pytest.mark.more
def test_a_server_that_ends_at_once_names_its_words() -> None:
    """The error of the start shows status and the end of stderr."""

    code = "import sys; sys.exit('no licence was found\\nbuy one')"
    server = McpServer(command=(sys.executable, "-I", "-S", "-c", code))

    async def run() -> None:
        async with running(tools=server):
            pass

    with pytest.raises(
        InfrastructureError,
        match=r"(?s)'tools' does not start: the server ended.*no licence was found",
    ):
        asyncio.run(run())
