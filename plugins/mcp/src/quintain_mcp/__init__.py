"""MCP: a client whose tools environments offer to the policy, and a search server over a local
corpus.
"""

from __future__ import annotations

from .client import Mcp, McpSession
from .corpus import Columns, Passage, open_corpus
from .declaration import McpServer
from .index import Hit, SearchIndex, build_index
from .result import McpResult
from .search_server import make_server
from .tool_list import RemoteTool, ToolList

__all__ = [
    "Columns",
    "Hit",
    "Mcp",
    "McpResult",
    "McpServer",
    "McpSession",
    "Passage",
    "RemoteTool",
    "SearchIndex",
    "ToolList",
    "build_index",
    "make_server",
    "open_corpus",
]
