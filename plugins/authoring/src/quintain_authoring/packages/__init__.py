"""The registry of plugins: find one, see what it is, compare a wheel with its record."""

from __future__ import annotations

__all__: list[str] = []
