"""A run while it runs, and after: timelines of its steps, a page, a report, and what steers it."""

from __future__ import annotations

__all__: list[str] = []
