"""Writing TOML (the standard library only reads it)."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """TOML text of *table*; ``tomllib.loads`` gives it back. Keys with ``None`` are left out: TOML has no null.

    Raises:
        TypeError: a value that TOML cannot carry.
    """
    return "\n".join(_lines(table, ())).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    items = [(k, v) for k, v in table.items() if v is not None]
    for key, value in items:
        if not _is_table(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in items:
        name = ".".join(map(_key, (*path, key)))
        if isinstance(value, Mapping):
            given = [v for v in value.values() if v is not None]
            if not given or not all(map(_is_table, given)):  # a table of tables needs no header of its own
                yield from ("", f"[{name}]")
            yield from _lines(value, (*path, key))
        elif _tables(value):
            for row in value:
                yield from ("", f"[[{name}]]", *_lines(row, (*path, key)))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or _tables(value)


def _tables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a TOML key must be text, not {key!r}")
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # JSON escapes are TOML escapes, except that TOML also wants DEL escaped and knows no surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, (datetime.date, datetime.time)):  # datetime is a date
        return value.isoformat()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"TOML cannot carry {value!r}; use text, numbers, true/false, dates, lists and tables")
