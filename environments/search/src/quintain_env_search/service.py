"""The search server's index in this process: the same two tools, without the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from quintain import Service, Tool, ToolError, ToolSpec
from quintain_tools.search import SearchIndex, build_index
from quintain_tools.search.server import EXCERPT_CHARS, MAX_HITS, OPEN_CHARS, render

from .corpus import EnvironmentCorpus
from .squad import read_squad

SEARCH = ToolSpec(
    name="search",
    parameters={
        "properties": {"query": {"type": "string"}, "k": {"type": "integer"}},
        "required": ["query"],
    },
)
OPEN = ToolSpec(
    name="open", parameters={"properties": {"id": {"type": "string"}}, "required": ["id"]}
)


@dataclass(frozen=True)
class IndexSession:
    """A session of `SearchService`."""

    tools: Sequence[Tool]


class SearchService(Service):
    """The tools `search` and `open` over the corpus of the environment `search`, in this
    process.
    """

    def __init__(self, *, data: str = "", pilots: int = 2000, seed: int = 0) -> None:
        """Name the corpus as the fields of the environment do."""
        self._corpus = EnvironmentCorpus(data, pilots, seed)
        self._index: SearchIndex | None = None

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that the file of the corpus can be read; see `quintain.Service.check_available`."""
        if args.get("data"):
            read_squad(args["data"])

    async def __aenter__(self) -> Self:
        self._index = build_index(self._corpus)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_corpus": self._corpus, "_index": None}  # a worker process opens its own

    @asynccontextmanager
    async def session(self) -> AsyncIterator[IndexSession]:
        """Yield the tools of one episode, which share the index."""
        yield IndexSession((Tool(spec=SEARCH, call=self._search), Tool(spec=OPEN, call=self._open)))

    async def _search(self, arguments: Mapping[str, Any]) -> str:
        assert self._index is not None
        query, k = str(arguments["query"]), int(arguments.get("k", 5))
        if not query.strip():
            raise ToolError("the query is empty; give words to look for")
        hits = self._index.search(query, min(k, MAX_HITS))
        shown = [render(hit.passage, EXCERPT_CHARS) for hit in hits]
        return "\n\n".join(shown) or "no passage has these words; try others"

    async def _open(self, arguments: Mapping[str, Any]) -> str:
        assert self._index is not None
        passage = self._index.open(str(arguments["id"]))
        if passage is None:
            raise ToolError("no passage has this id; `search` shows ids in brackets")
        text: str = render(passage, OPEN_CHARS)
        return text
