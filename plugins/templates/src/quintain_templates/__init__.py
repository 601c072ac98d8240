"""Chat templates that go on where they left off, so that a turn costs what it adds."""

from __future__ import annotations

from .growing import GrowingText

__all__ = ["GrowingText"]
