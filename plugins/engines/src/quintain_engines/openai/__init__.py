"""Engines behind a server that speaks OpenAI's protocol: chat completions as text, or completions
as exact tokens. `ServerWatch` is for other engines behind a server.
"""

from __future__ import annotations

from .client import OpenAIEngine
from .server_watch import ServerWatch
from .tokens import OpenAITokenEngine

__all__ = ["OpenAIEngine", "OpenAITokenEngine", "ServerWatch"]
