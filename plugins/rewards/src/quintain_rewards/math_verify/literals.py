"""Numbers that need no parser: exact rationals, and numbers with a base."""

from __future__ import annotations

import re
from fractions import Fraction

_INTEGER = r"\d{1,500}"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d{{0,500}})?|\.\d{{1,500}})"
_RATIONAL = re.compile(
    rf"(?P<sign>[+-]?)(?:\\frac\{{(?P<top>[+-]?{_DECIMAL})\}}\{{(?P<bottom>[+-]?{_DECIMAL})\}}"
    rf"|(?P<over>{_DECIMAL})/(?P<under>{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:\\cdot10\^(?:\{{(?P<power>[+-]?\d{{1,3}})\}}|(?P<digit>\d)))?)"
)
_BASED = re.compile(
    r"\(?(?:\\text\{)?(?P<digits>[0-9A-Za-z]+)\}?\)?_(?:\{\(?(?:\\text\{)?(?P<long>[a-z]+|\d{1,2})\}?\)?\}|\\text\{(?P<word>[a-z]+)\}|(?P<short>\d))"
)
_PREFIXED = re.compile(r"0(?P<base>[bBoOxX])(?P<digits>[0-9A-Fa-f]+)")
_SPOKEN = re.compile(
    r"(?P<digits>[0-9A-Fa-f]+)\s*\\?(?:text\{)?\s*\(?(?:in)?\s*base\s*\}?\s*-?(?P<base>\d{1,2}|[a-z]+)\)?\}?"
)
_NAMES = "two three four five six seven eight nine ten eleven twelve".split()
_WORDS = {name: base for base, name in enumerate(_NAMES, 2)} | {
    "sixteen": 16,
    "binary": 2,
    "octal": 8,
    "decimal": 10,
}
_WORDS |= {"hexadecimal": 16, "bin": 2, "oct": 8, "dec": 10, "hex": 16}


def rational(text: str) -> Fraction | None:
    """Return the exact value of a normalised literal: whole number, decimal, fraction of these, or
    times a power of ten.
    """
    while text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1]
    match = _RATIONAL.fullmatch(text) if len(text) <= 2100 else None
    if match is None:
        return None
    if match["plain"] is not None:
        value = Fraction(match["plain"].rstrip(".") or "0")
        power = match["power"] or match["digit"]
        value *= Fraction(10) ** int(power) if power else 1
    else:
        bottom = Fraction((match["bottom"] or match["under"]).rstrip("."))
        if not bottom:
            return None
        value = Fraction((match["top"] or match["over"]).rstrip(".")) / bottom
    return -value if match["sign"] == "-" else value


def based(text: str) -> tuple[int, int] | None:
    """Return the value and the base of a normalised number that states its base (``101_2``,
    ``0b101``); ``None`` for other text.
    """
    text = text.strip()
    match = _BASED.fullmatch(text) or _SPOKEN.fullmatch(text)
    if match is not None:
        groups = match.groupdict()
        name = (
            groups.get("long")
            or groups.get("word")
            or groups.get("short")
            or groups.get("base")
            or ""
        )
        base = int(name) if name.isdigit() else _WORDS.get(name, 0)
        if match["digits"].isalpha() and base < 11:  # a variable with an index
            return None
    else:
        match = _PREFIXED.fullmatch(text)
        if match is None:
            return None
        base = {"b": 2, "o": 8, "x": 16}[match["base"].lower()]
    if not 2 <= base <= 36 or len(match["digits"]) > 500:
        return None
    try:
        return int(match["digits"], base), base
    except ValueError:
        return (-1, base)  # digits that the base does not have: equal to nothing
