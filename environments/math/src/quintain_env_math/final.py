"""The answer format that arithmetic and countdown share: the last line is ``####`` and the answer,
nothing after it.
"""

from __future__ import annotations

MARK = "####"


def marked_answer(reply: str) -> str | None:
    """Return what stands after the one ``####`` of *reply*; ``None`` where there is none, or more
    than one.

    A second marker is refused, or listing many answers would pay.
    """
    parts = reply.split(MARK)
    return parts[1].strip() if len(parts) == 2 else None
