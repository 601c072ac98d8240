"""Reading TOML, with the limits that its parser lacks."""

from __future__ import annotations

import tomllib
from typing import Any

from ..types.json_text import levels

DEEPEST = 50
"""Levels of tables and lists in a recipe, at most."""


def read_toml(text: str) -> dict[str, Any]:
    """Return the data of a TOML text.

    Raises:
        TOMLDecodeError: it is not TOML.
        ValueError: it has more than `DEEPEST` levels, or a whole number that TOML does not allow.
    """
    too_deep = f"expected at most {DEEPEST} levels of tables and lists"
    number = "expected whole numbers of at most 64 bits"
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as e:
        # Python converts at most 4,300 digits, and its parser recurses
        raise ValueError(too_deep if isinstance(e, RecursionError) else number) from None
    for depth, values in enumerate(levels(data)):
        if depth >= DEEPEST:
            raise ValueError(too_deep)
        if any(isinstance(v, int) and not -(2**63) <= v < 2**63 for v in values):
            raise ValueError(number)
    return data
