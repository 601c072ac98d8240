"""The cases, by what they are about; importing this package registers all of them."""

from __future__ import annotations

from ..case import CASES

# the order of the table
from . import turns, tokens, sampling, tools, histories, requests, weights  # isort: skip

__all__ = ["CASES", "histories", "requests", "sampling", "tokens", "tools", "turns", "weights"]
