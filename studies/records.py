"""Results as JSON that is compact and still readable: a record stands on one line."""

from __future__ import annotations

import json
from typing import Any

LONGEST = 400
"""Characters of a record. What is longer has a line for each of its parts."""


def record_lines(data: Any) -> str:
    """Return *data* as JSON, with a line for each record.

    A table or list stands on one line if it fits, and a list of plain values always does. Anything
    else has a line for each of its parts.
    """
    return _text(data, 0) + "\n"


def _text(data: Any, depth: int) -> str:
    compact = json.dumps(data, separators=(",", ":"))
    is_record = depth > 0 and len(compact) <= LONGEST
    if is_record or not _has_parts(data):
        return compact
    margin = " " * (depth + 1)
    if isinstance(data, dict):
        brackets = "{}"
        parts = [f"{json.dumps(key)}:{_text(value, depth + 1)}" for key, value in data.items()]
    else:
        brackets = "[]"
        parts = [_text(value, depth + 1) for value in data]
    lines = ",\n".join(margin + part for part in parts)
    return f"{brackets[0]}\n{lines}\n{' ' * depth}{brackets[1]}"


def _has_parts(data: Any) -> bool:
    """Whether *data* is a table, or a list of tables or lists."""
    if isinstance(data, list):
        return any(isinstance(value, dict | list) for value in data)
    return isinstance(data, dict) and data != {}
