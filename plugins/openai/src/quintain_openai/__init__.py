"""Engines behind a server that speaks OpenAI's protocol: chat completions as text, or completions
as exact tokens.
"""

from __future__ import annotations

from .client import OpenAIEngine
from .tokens import OpenAITokenEngine

__all__ = ["OpenAIEngine", "OpenAITokenEngine"]
