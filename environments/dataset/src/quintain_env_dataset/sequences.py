"""Tuples, intervals, sets and lists of plain numbers."""

from __future__ import annotations

import re
from collections.abc import Hashable

from .quantities import whole_quantity
from .spelling import LONGEST

_ENDS = {"(", "[", "{", "]"}
_CLOSES = {")", "]", "}", "["}
_SEPARATED = re.compile(r"[,;{]")
_END = re.compile(r"[-+]?(?:\\infty|\u221e|infinity|inf|oo)(?![A-Za-z])", re.IGNORECASE)


def number_sequence(text: str, *, decimal_comma: bool = False) -> Hashable | None:
    r"""Return what equal sequences of numbers share; ``None`` for other text, in `plain` spelling.

    The order counts between parentheses and square brackets. It does not in a set, nor in a list
    without any, which is how several solutions are written. With decimal commas ``;`` separates.

    >>> number_sequence("(1, 2)") == number_sequence("(1.0,2)")
    True
    >>> number_sequence("{1, 2}") == number_sequence("{2, 1}"), number_sequence("[0, 1)") == number_sequence("[0, 1]")
    (True, False)
    """
    if not _SEPARATED.search(text):
        return None
    bare = text.replace("\\{", "{").replace("\\}", "}").strip()
    if len(bare) > LONGEST or len(bare) < 3:
        return None
    opening, closing = "", ""
    if bare[0] in _ENDS and bare[-1] in _CLOSES:
        opening, closing, bare = bare[0], bare[-1], bare[1:-1]
    separator = ";" if decimal_comma or ";" in bare else ","
    # 1,200 without a blank is one number
    parts = re.split(
        r",(?!\d{3}(?!\d))|,(?= )" if separator == "," and not opening else separator, bare
    )
    if len(parts) < 2 and opening != "{":
        return None
    values: list[Hashable] = []
    for part in parts:
        value = _value(part.strip(), decimal_comma)
        if value is None:
            return None
        values.append(value)
    if opening == "{" or not opening:
        return ("set", frozenset(values))
    return (opening, closing, tuple(values))


def _value(text: str, decimal_comma: bool) -> Hashable | None:
    if _END.fullmatch(text):
        return "-infinity" if text.startswith("-") else "infinity"
    return whole_quantity(text, decimal_comma=decimal_comma)
