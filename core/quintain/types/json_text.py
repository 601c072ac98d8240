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
        below: list[Any] = []
        for outer in level:
            if type(outer) in _LEAVES:
                continue
            if isinstance(outer, Mapping):
                below.extend(outer.values())
            elif isinstance(outer, (list, tuple)):
                below.extend(outer)
        level = below


def encodable(text: str) -> str:
    """Return *text* without lone surrogates, which JSON can escape and UTF-8 cannot encode; they
    become question marks.
    """
    return text.encode("utf-8", "replace").decode("utf-8")
