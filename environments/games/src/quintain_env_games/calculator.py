"""A calculator for text of the policy: whole numbers with +, - and *; nothing is evaluated as
code.
"""

from __future__ import annotations

import re

LONGEST = 60
"""Characters of an expression; products of so few digits are quick to compute."""
EXPRESSION = re.compile(r"\d{1,9}( *[-+*] *\d{1,9})*")


def calculate(text: str) -> int:
    """Return the value of whole numbers joined by ``+``, ``-`` and ``*``.

    Raises:
        ValueError: it is anything else, or longer than `LONGEST`.

    >>> calculate("2 + 3*4 - 5")
    9
    """
    expression = text.strip()
    if len(expression) > LONGEST or not EXPRESSION.fullmatch(expression):
        raise ValueError(f"expected whole numbers with +, - and *, at most {LONGEST} characters")
    total = 0
    for sign, product in re.findall(r"([-+]?)([^-+]+)", expression):
        value = 1
        for number in product.split("*"):
            value *= int(number)
        total += -value if sign == "-" else value
    return total
