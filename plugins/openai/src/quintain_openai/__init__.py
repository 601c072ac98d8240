"""An engine behind any server that speaks OpenAI's chat-completions protocol."""

from __future__ import annotations

from .client import OpenAIEngine

__all__ = ["OpenAIEngine"]
