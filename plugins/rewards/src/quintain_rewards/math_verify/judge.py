"""What a worker does with one request: compare an answer, or read a reference. Its input and output
are plain data.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from . import check
from .expressions import Unreadable, expression

_WARM = (
    (r"\frac{1}{2}", "0.5"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("x^2+1", "1+x^2"),
    ("[0,1)", r"0\le x<1"),
    ("x=2", "y=2"),
    (r"\sin(x)", "0"),
    (r"\log_2 8", "3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
    (r"\binom{5}{2}", "10"),
    (r"e^{i\pi}", "-1"),
)


def warm_up() -> None:
    """Fill the caches of the parser (its automata are built on first use) before children are
    forked.
    """
    for gold, answer in _WARM:
        check.same(gold, answer)
    expression.cache_clear()


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return the verdict on ``{"gold": ..., "answers": [...]}``, or whether ``{"gold": ...}`` can
    be read.
    """
    gold = request["gold"]
    if not _readable(gold):
        return {"kind": "unreadable", "reason": "it cannot be read as mathematics"}
    if "answers" not in request:
        return {"kind": "readable"}
    given = request["answers"]
    try:
        same = check.same(gold, given[0] if len(given) == 1 else ";".join(given))
    except Unreadable:
        return {"kind": "wrong", "reason": "the answer cannot be read as mathematics"}
    return {"kind": "correct" if same else "wrong"}


@lru_cache(maxsize=8192)
def _readable(gold: str) -> bool:
    return check.readable(gold)
