"""Commands that install, remove and publish plugins."""

from __future__ import annotations

__all__: list[str] = []
