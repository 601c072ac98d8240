"""The replies that the gate stopped: counted once in a step, with an alert where they are many."""

from __future__ import annotations

import hashlib
from collections import Counter

FEWEST = 8
"""Replies of a step from which the share that was stopped is judged."""


class Stops:
    """Counts the distinct replies of each step and what the gate did with them.

    Attributes:
        counts: since the start: ``replies``, ``gated`` (given the lowest score), ``injections``
            (that spoke to the judge, whether they were judged or not).
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._step = 0
        self._reasons: dict[bytes, str] = {}
        self._flagged: set[bytes] = set()

    def seen(self, step: int, reply: str, reason: str) -> str:
        """Count *reply* of *step*, which was stopped for *reason*, unless that is empty; return
        *reason*.
        """
        name = self._name(step, reply)
        if name not in self._reasons:
            self._reasons[name] = reason
            self.counts["replies"] += 1
            self.counts["gated"] += bool(reason)
        return reason

    def flag(self, step: int, reply: str) -> None:
        """Count *reply* of *step* as one that speaks to the judge."""
        name = self._name(step, reply)
        self.counts["injections"] += name not in self._flagged
        self._flagged.add(name)

    def alert(self, limit: float) -> str:
        """Return the alert of the present step, if more than a share of *limit* of its replies was
        stopped; else empty.
        """
        reasons = Counter(filter(None, self._reasons.values()))
        share = reasons.total() / max(len(self._reasons), 1)
        if len(self._reasons) < FEWEST or share <= limit:
            return ""
        listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3))
        return (
            f"{share:.0%} of {len(self._reasons)} replies got the lowest score without being "
            f"judged: {listed}. Read them with `quintain rollouts`; if they are honest, set gate = "
            "false for this judge, or another prompt."
        )

    def _name(self, step: int, reply: str) -> bytes:
        if step != self._step:
            self._step = step
            self._reasons.clear()
            self._flagged.clear()
        return hashlib.blake2b(reply.encode(errors="replace"), digest_size=16).digest()
