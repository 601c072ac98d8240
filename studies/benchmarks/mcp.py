"""Calls per second of the service `mcp` beside the bare client of the SDK: stdio and HTTP, shared
and per episode.

The server has one tool that returns its argument, so that the wire is all there is. An episode
makes five calls; *at once* is the number of episodes, of processes where each episode has its own.
CPU is the client's.

    python -m studies.benchmarks.mcp [--calls 2000] [--episodes 24] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

AT_ONCE, PROCESSES, CALLS = 16, 4, 5
TEXT = "a passage of some words " * 20


def serve(port: int | None) -> None:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer(name="echo", log_level="ERROR")

    @server.tool(structured_output=False)
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    @server.tool(structured_output=False)
    async def forget() -> str:
        """Forget what there was."""
        return "forgotten"

    if port is None:
        server.run("stdio")
        return
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    app = server.streamable_http_app(stateless_http=True, json_response=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


ECHO = [sys.executable, "-m", "studies.benchmarks.mcp", "--serve"]


async def at_once(number: int, count: int, work: Callable[[], Awaitable[None]]) -> None:
    """Do *work* *count* times, *number* of them at one time."""
    waiting = iter(range(count))

    async def worker() -> None:
        for _ in waiting:
            await work()

    await asyncio.gather(*(worker() for _ in range(number)))


async def measured(
    number: int, count: int, work: Callable[[], Awaitable[None]], each: int = 1
) -> tuple[float, float]:
    """Calls per second, and milliseconds of CPU for a call; *each* is the number of calls that
    *work* makes.
    """
    await at_once(number, number, work)
    wall, cpu = time.perf_counter(), time.process_time()
    await at_once(number, count, work)
    calls = count * each
    return calls / (time.perf_counter() - wall), 1000 * (time.process_time() - cpu) / calls


async def bare_shared(server: Any, calls: int) -> tuple[float, float]:
    from mcp import Client

    async with Client(server) as client:

        async def call() -> None:
            assert (await client.call_tool("echo", {"text": TEXT})).content[0].text == TEXT  # type: ignore[union-attr]

        return await measured(AT_ONCE, calls, call)


async def bare_episodes(server: Any, episodes: int) -> tuple[float, float]:
    from mcp import Client

    async def episode() -> None:
        async with Client(server) as client:
            for _ in range(CALLS):
                await client.call_tool("echo", {"text": TEXT})

    return await measured(PROCESSES, episodes, episode, CALLS)


async def ours_shared(calls: int, **settings: Any) -> tuple[float, float]:
    from quintain_tools.mcp import Mcp, McpServer

    async with Mcp(servers={"echo": McpServer(**settings)}) as mcp, mcp.session() as session:
        (tool,) = session.choose("echo")

        async def call() -> None:
            assert TEXT in await tool.call({"text": TEXT})

        return await measured(AT_ONCE, calls, call)


async def ours_episodes(episodes: int, **settings: Any) -> tuple[float, float]:
    from quintain_tools.mcp import Mcp, McpServer

    server = McpServer(session="episode", pool=PROCESSES, **settings)
    async with Mcp(servers={"echo": server}) as mcp:

        async def episode() -> None:
            async with mcp.session() as session:
                (tool,) = session.choose("echo")
                for _ in range(CALLS):
                    await tool.call({"text": TEXT})

        return await measured(PROCESSES, episodes, episode, CALLS)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--calls", type=int, default=2000)
    options.add_argument("--episodes", type=int, default=24)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--quick", action="store_true", help="100 calls, 4 episodes, one round: does it run?"
    )
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.serve:
        serve(chosen.port)
        return
    from mcp import StdioServerParameters

    if chosen.quick:
        chosen.calls, chosen.episodes, chosen.rounds = 100, 4, 1
    calls, episodes = chosen.calls, chosen.episodes
    stdio = StdioServerParameters(command=ECHO[0], args=ECHO[1:])
    with subprocess.Popen([*ECHO, "--port", "0"], stderr=subprocess.PIPE, text=True) as http:
        try:
            url = re.search(r"http://\S+", http.stderr.readline())[0]  # type: ignore[index, union-attr]
            rows: dict[str, list[Callable[[], Any]]] = {
                "stdio, shared": [
                    lambda: bare_shared(stdio, calls),
                    lambda: ours_shared(calls, command=tuple(ECHO)),
                ],
                "HTTP, shared": [
                    lambda: bare_shared(url, calls),
                    lambda: ours_shared(calls, url=url),
                ],
                "stdio, one process per episode": [
                    lambda: bare_episodes(stdio, episodes),
                    lambda: ours_episodes(episodes, command=tuple(ECHO)),
                ],
                "stdio, per episode with a reset": [
                    lambda: ours_episodes(20 * episodes, command=tuple(ECHO), reset="forget"),
                ],
                "HTTP, one session per episode": [
                    lambda: bare_episodes(url, 5 * episodes),
                    lambda: ours_episodes(5 * episodes, url=url),
                ],
            }
            for name, measures in rows.items():
                shown = []
                for measure in measures:
                    measurements = [asyncio.run(measure()) for _ in range(chosen.rounds)]
                    rate, cpu = (
                        statistics.median(column) for column in zip(*measurements, strict=True)
                    )
                    shown.append(f"{rate:7,.0f} calls/s {cpu:6.2f} ms of CPU")
                sides = ("bare", "ours")[-len(shown) :]
                print(f"{name:33}", *(f"{w} {text}" for w, text in zip(sides, shown, strict=True)))
        finally:
            http.terminate()
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
