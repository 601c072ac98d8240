"""Reads nested data that a model, a server or a user wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


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
            if isinstance(outer, (Mapping, list, tuple))
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]


def read_json(text: str, *, deepest: int) -> Any:
    """Return the value of a JSON text. Lone surrogates, which no file can hold, become question
    marks.

    Raises:
        ValueError: not JSON, or of more than *deepest* levels.
    """
    too_deep = f"more than {deepest} levels of objects and lists"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    if any(depth >= deepest for depth, _ in enumerate(levels(value))):
        raise ValueError(too_deep)
    if "\\ud" in text.lower():
        return json.loads(encodable(json.dumps(value, ensure_ascii=False)))
    return value


def encodable(text: str) -> str:
    """Return *text* without lone surrogates, which JSON can escape and UTF-8 cannot encode; they
    become question marks.
    """
    return text.encode("utf-8", "replace").decode("utf-8")
