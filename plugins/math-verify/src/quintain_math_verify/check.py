"""What runs in the worker: Math-Verify, without its own clock.

Its time-outs are signals of the main thread; here the whole process is killed instead, which stops a loop in C, too.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own clock is off, which is the point

_TARGETS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def equal(gold: str, reply: str) -> tuple[bool | None, str]:
    """Whether the final answer in *reply* equals *gold*, and why not; ``None`` where *gold* itself cannot be read."""
    reference = _gold(gold)
    if not reference:
        return None, f"the reference answer {gold[:80]!r} cannot be read as mathematics"
    try:
        answers = _parsed(reply)
    except Exception as e:  # noqa: BLE001  whatever the parser fails on is the policy's fault
        return False, f"the answer cannot be read: {type(e).__name__}: {e}"[:200]
    if not answers:
        return False, "no answer found"
    try:
        same = bool(verify(list(reference), answers, timeout_seconds=None, raise_on_error=True))
    except Exception as e:  # noqa: BLE001  the reference was read, so here too
        return False, f"the answer cannot be compared: {type(e).__name__}: {e}"[:200]
    return same, "" if same else f"{str(answers[0])[:80]} is not {gold[:80]}"


def _parsed(text: str) -> list[Any]:
    return list(
        parse(
            text,
            _TARGETS,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
            raise_on_error=True,
        )
    )


@lru_cache(maxsize=4096)
def _gold(text: str) -> tuple[Any, ...]:
    """A reference answer as mathematics: given as LaTeX or plainly; empty where neither reads."""
    for candidate in (text, f"${text}$") if "$" in text or "\\boxed" in text else (f"${text}$", text):
        try:
            expressions = _parsed(candidate)
        except Exception:  # noqa: BLE001  the other reading may do; if none does the caller says so
            continue
        if expressions:
            return tuple(expressions)
    return ()
