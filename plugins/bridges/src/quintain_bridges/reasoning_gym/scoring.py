"""The scorers of reasoning-gym, called in workers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .rows import Entry, entry_of

RUNS_REPLIES = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Data sets whose scorer gives the reply to ``eval``, or to sympy's ``parse_expr``, which calls it:
a reply could run any code with the rights of the run.
"""
FUNCTIONS = frozenset(
    "abs acos asin atan cos cosh cot csc exp factorial ln log sec sin sinh sqrt tan tanh".split()
)
"""What an expression may call."""
_CALL = re.compile(r"(\w*)\s*\(")
_CODE = re.compile(r"__|#|\\|[)\]}'\"]\s*\(|\.\s*[^\W\d]|\b(?:lambda|import)\b")
ANSWERS = ("possible_answer", "example_answer", "example_correct_answer")
"""Keys of the metadata with an answer of a row that has no ``answer``."""


def scored(name: str, config: str, row: str, reply: str) -> tuple[float | None, str]:
    """Return what the scorer of the data set *name* gives to *reply*, with a reason; ``None`` where
    it fails on the stored answer, too.

    An exception is the doing of the reply, and scores 0, where the scorer takes the stored answer
    of the same row.
    """
    if name in RUNS_REPLIES and is_code(reply):
        return 0.0, "refused: the scorer would run it as Python"
    entry, scorer = entry_of(row), _scorer(name, config)
    try:
        return float(scorer(reply, entry)), ""
    except Exception as e:  # noqa: BLE001 - their code, on text of a policy
        fault = f"{type(e).__name__}: {e}"[:200]
    try:
        scorer(stored_answer(entry), entry)
    except Exception:  # noqa: BLE001
        return None, fault
    return 0.0, f"the scorer raised {fault}"


def is_code(reply: str) -> bool:
    """Return whether *reply* is more than numbers, lists and the functions of an expression.

    >>> is_code("sin(2*x)/4 + C"), is_code("[[1, 0], [0, 1]]"), is_code("6*4*(1+1)")
    (False, False, False)
    >>> is_code("open('x')"), is_code("().__class__"), is_code("(exec)('1')"), is_code("x.y")
    (True, True, True, True)
    """
    names = {name for name in _CALL.findall(reply) if name and not name.isdigit()}
    return bool(_CODE.search(reply)) or not names <= FUNCTIONS


def stored_answer(entry: Entry) -> str | None:
    """Return the answer of a row; ``None`` where it has none."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    known = next((entry["metadata"][k] for k in ANSWERS if k in entry["metadata"]), None)
    return known if known is None or isinstance(known, str) else json.dumps(known)


@lru_cache(maxsize=256)
def _scorer(name: str, config: str) -> Callable[[Any, Entry], Any]:
    import reasoning_gym

    # the scorer reads settings of the data set, and no row of it
    scorer: Callable[[Any, Entry], Any] = reasoning_gym.create_dataset(
        name, size=1, seed=0, **json.loads(config)
    ).score_answer
    return scorer
