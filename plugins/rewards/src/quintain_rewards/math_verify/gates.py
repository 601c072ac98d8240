"""Size gates: what is too large for a computer algebra system, found without one.

They keep most hostile inputs away from the workers; what passes and still takes too long is killed
there.
"""

from __future__ import annotations

import re

LONGEST = 500
"""Characters of a normalised answer."""

MOST_DIGITS = 60
"""Digits of one number inside an expression; longer literals are compared without a parser."""

MOST_POWERS = 12
DEEPEST = 30
LARGEST_FACTORIAL = 1000
LARGEST_EXPONENT = 10_000
MOST_CELLS = 36

_FACTORIAL = re.compile(
    r"(\d{4,})\s*\}?\)?\s*!|!\s*!|!\s*\)\s*!|\([\d^{}+.\\cdot\s]*\^[\d^{}+.\\cdot\s]*\)\s*!"
)
_OPENED = r"[\s{(+-]*"
_EXPONENT = re.compile(rf"\^{_OPENED}(\d+(?:[\s)}}]*\^{_OPENED}\d+)*)")
_OPEN, _CLOSE = frozenset("({["), frozenset(")}]")


def too_large(text: str) -> str:
    """Return why the normalised *text* is too large to be verified; empty if it is not."""
    if len(text) > LONGEST:
        return f"{len(text)} characters, more than {LONGEST}"
    longest = max((len(d) for d in re.findall(r"\d+", text)), default=0)
    if longest > MOST_DIGITS:
        return f"a number of {longest} digits, more than {MOST_DIGITS}"
    if text.count("^") > MOST_POWERS:
        return f"{text.count('^')} powers, more than {MOST_POWERS}"
    if (depth := _depth(text)) > DEEPEST:
        return f"brackets nested {depth} deep, more than {DEEPEST}"
    if text.count("&") > MOST_CELLS:
        return f"a matrix of more than {MOST_CELLS} entries"
    for match in _FACTORIAL.finditer(text):
        if match[1] is None or int(match[1]) > LARGEST_FACTORIAL:
            return f"a factorial above {LARGEST_FACTORIAL}!, or of a factorial or an expression"
    return _powers(text)


def _powers(text: str) -> str:
    """Return why an exponent is too large, empty if none is. Towers count from the top: 2^3^2 has
    the exponent 9.
    """
    for match in _EXPONENT.finditer(text):
        tower = [int(d) for d in re.findall(r"\d+", match[1])]
        value = 1
        for n in reversed(tower):  # from the top of the tower
            if n > 1 and value >= LARGEST_EXPONENT.bit_length() + 1:  # 2^value is above
                value = LARGEST_EXPONENT + 1
            else:
                value = min(n**value, LARGEST_EXPONENT + 1)
        if value > LARGEST_EXPONENT:
            return f"an exponent above {LARGEST_EXPONENT}"
    return ""


def _depth(text: str) -> int:
    depth = deepest = 0
    for c in text:
        depth += (c in _OPEN) - (c in _CLOSE)
        deepest = max(deepest, depth)
    return deepest
