"""The tools `search` and `open` of an index, as an MCP server."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from .corpus import Passage
from .index import SearchIndex

__all__ = ["EXCERPT_CHARS", "MAX_HITS", "OPEN_CHARS", "make_server", "render"]

MAX_HITS = 20
EXCERPT_CHARS = 1_200
OPEN_CHARS = 20_000
READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def make_server(
    index: SearchIndex, excerpt: int = EXCERPT_CHARS, opened: int = OPEN_CHARS
) -> MCPServer:
    """Return an MCP server with `search` and `open` over *index*.

    Args:
        excerpt: the most characters of a passage that a search shows.
        opened: the most characters of a passage that `open` shows.
    """
    # Queries take less than a millisecond, so they run in the event loop: a thread would cost more.
    server = MCPServer(
        name="quintain-search",
        version=version("quintain-tools"),
        subscriptions=False,
        log_level="WARNING",
    )

    @server.tool(annotations=READ_ONLY, structured_output=False)
    async def search(
        query: Annotated[str, Field(description="Words to look for; a question works, too.")],
        k: Annotated[int, Field(ge=1, le=MAX_HITS, description="Number of passages.")] = 5,
    ) -> str:
        """Find the passages that match the words of the query best; each begins with its [id] and
        title.
        """
        if not query.strip():
            raise ToolError("the query is empty; give words to look for")
        hits = index.search(query, k)
        if not hits:
            return "no passage has these words; try others"
        return "\n\n".join(render(hit.passage, excerpt) for hit in hits)

    @server.tool(name="open", annotations=READ_ONLY, structured_output=False)
    async def open_(
        id: Annotated[  # noqa: A002
            str, Field(description="The id of a passage, as `search` shows it in brackets.")
        ],
    ) -> str:
        """Read a whole passage by its id."""
        passage = index.open(id)
        if passage is None:
            raise ToolError(
                f"no passage has the id {json.dumps(id[:200])}; `search` shows ids in brackets"
            )
        return render(passage, opened)

    return server


def render(passage: Passage, limit: int) -> str:
    """Return a passage as a tool shows it: id and title, then at most *limit* characters of its
    text.
    """
    head = f"[{passage.id}] {passage.title}".rstrip()
    if len(passage.text) <= limit:
        return f"{head}\n{passage.text}"
    return f"{head}\n{passage.text[:limit]} ... ({len(passage.text):,} characters in all)"
