"""Nested data and text that JSON files hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LEAVES = frozenset({str, int, float, bool, type(None)})
"""Asked first, because to ask an abstract class of each number of a list takes most of the time."""


def levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values of each level of nested mappings and lists: *value*, what it holds, what
    that holds.
    """
    level = [value]
    while level:
        yield level
        level = [
            inner
            for outer in level
            if type(outer) not in _LEAVES and isinstance(outer, (Mapping, list, tuple))
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]


def encodable(text: str) -> str:
    """Return *text* without lone surrogates, which JSON can escape and UTF-8 cannot encode; they
    become question marks.
    """
    return text.encode("utf-8", "replace").decode("utf-8")
