"""The tools of one episode: they pass calls on to a server, and record the passages that it
returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import zip_longest
from typing import Any, Protocol

from quintain import InfrastructureError, Tool, ToolError

from .tasks import SearchResult, Seen

_HEAD = re.compile(r"^\[([^\[\]\n]{1,200})\][ \t]*(.*)$", re.MULTILINE)
ERROR = "error: "
"""What the text of a failed call begins with."""


class ToolSession(Protocol):
    """The tools of a server, for one episode."""

    @property
    def tools(self) -> Sequence[Tool]: ...


class ToolServer(Protocol):
    """The service of the slot `retriever`: an MCP client of `quintain-tools`, or `SearchService`."""

    def session(self) -> AbstractAsyncContextManager[ToolSession]:
        """Return the session of one episode."""


class Desk:
    """The tools `search` and `open` as the policy sees them, whatever the server calls its own."""

    def __init__(self, session: ToolSession, search: str, read: str, results: int) -> None:
        """Take the tools of *session*.

        Args:
            search, read: the server's names of the tools; an empty *read* leaves `open` out.
            results: passages of a search, if the server's tool has a parameter ``k``; 0 is the
                server's own number.

        Raises:
            InfrastructureError: the server has no such tool.
        """
        offered = {tool.spec.name: tool for tool in session.tools}
        for name in filter(None, (search, read)):
            if name not in offered:
                raise InfrastructureError(
                    f"the service `retriever` offers no tool {name!r} but "
                    f"{', '.join(offered) or 'none'}; name its tools "
                    "in the fields `search_tool` and `open_tool` of the environment"
                )
        self._search, self._read, self._results = offered[search], offered.get(read), results
        self._pages: dict[int, list[Seen]] = {}

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        """What the policy may call."""
        return (self.search, self.open) if self._read else (self.search,)

    async def search(self, query: str) -> str:
        """Find passages by words."""
        return await self._called(self._search, "query", query, self._results)

    async def open(self, id: str) -> str:  # noqa: A002 - as the server calls it
        """Read a passage."""
        assert self._read is not None
        return await self._called(self._read, "id", id)

    def result(self, *, final: bool) -> SearchResult:
        """Return what was found; equal pages count once."""
        seen = dict.fromkeys(page for number in sorted(self._pages) for page in self._pages[number])
        return SearchResult(seen=tuple(seen), calls=len(self._pages), final=final)

    async def _called(self, tool: Tool, key: str, value: str, results: int = 0) -> str:
        # Calls of one turn run at one time: the number keeps the order in which they began.
        number = len(self._pages)
        self._pages[number] = []
        known = tool.spec.parameters.get("properties") or {}
        name = (
            key if key in known else next(iter(tool.spec.parameters.get("required") or known), key)
        )
        text = await tool.call({name: value} | ({"k": results} if results and "k" in known else {}))
        if text.startswith(ERROR):
            raise ToolError(text.removeprefix(ERROR))
        self._pages[number] = pages_of(text)
        return text


def pages_of(text: str) -> list[Seen]:
    """Return the passages in what a tool returned: each begins with a line ``[id] title``."""
    heads = list(_HEAD.finditer(text))
    pages = []
    for head, following in zip_longest(heads, heads[1:]):
        body = text[head.end() : following.start() if following else None].strip()
        pages.append(Seen(" ".join(head[1].split()), f"{head[2]}\n{body}".strip()))
    return pages
