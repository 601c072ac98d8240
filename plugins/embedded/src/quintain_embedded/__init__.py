"""An engine that samples from a Hugging Face model in this process."""

from __future__ import annotations

from .engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
