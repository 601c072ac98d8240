"""A search over a corpus of one's own: passages, an index on disk, and a server of it over MCP."""

from __future__ import annotations

from .corpus import Columns, Passage, open_corpus
from .index import Hit, SearchIndex, build_index
from .server import make_server

__all__ = [
    "Columns",
    "Hit",
    "Passage",
    "SearchIndex",
    "build_index",
    "make_server",
    "open_corpus",
]
