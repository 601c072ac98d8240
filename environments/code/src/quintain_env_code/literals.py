"""Data of rows as Python source, whole numbers of any length included.

Python refuses to convert whole numbers of more than 4,300 decimal digits. The limit guards the whole
process, so it stays, and such numbers are read in pieces and written in hexadecimal digits.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from quintain.errors import UsageError

PIECE = 4000
"""Decimal digits that are converted at once."""
LONGEST = 1_000_000
"""Decimal digits of a number of a row."""
_LONG_NUMBER = re.compile(r"\b[0-9]{4301,}\b")


def read_json(text: str) -> Any:
    """Return the value of JSON *text*.

    Raises:
        ValueError: it is no JSON.
        UsageError: a number has more than `LONGEST` digits.
    """
    return json.loads(text, parse_int=whole_number)


def whole_number(digits: str) -> int:
    """Return the number that *digits* stand for, perhaps after a minus."""
    if len(digits) <= PIECE:
        return int(digits)
    if len(digits) > LONGEST:
        raise UsageError(f"a number has {len(digits)} digits; at most {LONGEST} are read")
    value = 0
    text = digits.lstrip("-")
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        value = value * 10 ** len(piece) + int(piece)
    return -value if digits.startswith("-") else value


def literal(value: Any) -> str:
    """Return Python source of plain data, with floats that JSON has and Python has no literal for."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{literal(item)}, ' for item in value)})"
    if isinstance(value, dict):
        pairs = (f"{literal(key)}: {literal(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 13_000:
        return hex(value)
    return repr(value)


def with_short_numbers(source: str) -> str:
    """Return Python *source* with a 0 in place of numbers that are too long to be parsed, for who
    looks at its names.
    """
    return _LONG_NUMBER.sub("0", source)
