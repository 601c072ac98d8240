"""MCP: a search server over a local corpus."""

from __future__ import annotations

from .corpus import Columns, Passage, open_corpus
from .index import Hit, SearchIndex, build_index
from .search_server import make_server

__all__ = ["Columns", "Hit", "Passage", "SearchIndex", "build_index", "make_server", "open_corpus"]
