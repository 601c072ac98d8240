"""The search server as a process of its own, behind the client of `quintain-tools`."""

from __future__ import annotations

import os
import sys

from quintain_tools.mcp import Mcp, McpServer


class SearchServer(Mcp):
    """An MCP server with `search` and `open` over the corpus of the environment, started with the
    run.

    The same as the service ``mcp`` with one server, whose command is ``python -m
    quintain_env_search``.
    """

    def __init__(self, *, data: str = "", pilots: int = 2000, seed: int = 0) -> None:
        """Name the corpus as the fields of the environment do."""
        options = (
            "--data",
            os.path.abspath(data) if data else "",
            "--pilots",
            str(pilots),
            "--seed",
            str(seed),
        )
        cache = tuple(name for name in ("QUINTAIN_CACHE",) if name in os.environ)
        server = McpServer(command=(sys.executable, "-m", __package__, *options), pass_env=cache)
        super().__init__(servers={"search": server})
