"""The cases, by what they are about; importing this package registers all of them."""

from __future__ import annotations

from . import histories, requests, sampling, tokens, tools, turns, weights

__all__ = ["histories", "requests", "sampling", "tokens", "tools", "turns", "weights"]
