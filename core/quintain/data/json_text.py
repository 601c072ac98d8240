"""Reads JSON that a model, a server or a user wrote."""

from __future__ import annotations

import json
from typing import Any

from ..types.json_text import encodable, levels


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
