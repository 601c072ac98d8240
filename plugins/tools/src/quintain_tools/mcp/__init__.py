"""MCP: a client whose tools environments offer to the policy."""

from __future__ import annotations

from .client import Mcp, McpSession
from .declaration import McpServer
from .result import McpResult
from .tool_list import RemoteTool, ToolList

__all__ = [
    "Mcp",
    "McpResult",
    "McpServer",
    "McpSession",
    "RemoteTool",
    "ToolList",
]
