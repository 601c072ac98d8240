"""What guards a judge: settings, and the gate with its counts, once for each reply of a step."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from . import gate

FEWEST = 8
"""Replies of a step from which the share that was stopped is judged."""


@dataclass(kw_only=True)
class GuardSettings:
    """What keeps a judge from being fooled: settings of a judge service.

    Attributes:
        gate: give answers without content the lowest score without a call.
        injections: ``zero`` gives answers that speak to the judge the lowest score; ``flag`` has
            them judged and counts them.
        longest: characters of a reply that the judge reads; a longer one is stopped as by the gate,
            so that nothing hides in what is not read. Of longer prompts and references the middle
            is left out.
        gate_alert: share of the replies of a step that are stopped above which a run raises an
            alert.
        canary_every: steps between two batches of answers with known verdicts; 0 is never.
        canary_limit: share of accepted wrong answers of a kind above which the run stops.
        canary_rejected: share of rejected right answers of a kind above which the run stops.
        canary_drift: share of verdicts that differ from those of the first batch above which the
            run stops.
    """

    gate: bool = True
    injections: Literal["zero", "flag"] = "zero"
    longest: int = 60_000
    gate_alert: float = 0.2
    canary_every: int = 0
    canary_limit: float = 0.01
    canary_rejected: float = 0.5
    canary_drift: float = 0.1


class Guard:
    """Says which replies get the lowest score without a call, and counts the distinct replies of
    each step.

    Attributes:
        counts: since the start: ``replies``, ``gated`` (given the lowest score), ``injections``
            (that spoke to the judge, whether they were judged or not).
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._step = 0
        self._reasons: dict[bytes, str] = {}
        self._flagged: set[bytes] = set()

    def stopped(self, step: int, reply: str, *, offline: bool) -> str:
        """Return why *reply* of *step* gets the lowest score without a call; empty if it is judged.
        Rules, which judge *offline*, are not talked to.
        """
        reason = self.empty(reply)
        if not (reason or offline):
            longest = self._settings.longest
            if len(reply) > longest:
                reason = (
                    f"longer than the judge reads ({len(reply):,} characters; longest = "
                    f"{longest:,})"
                )
            else:
                reason = self._speaks(step, reply)
        return self._seen(step, reply, reason)

    def stopped_answer(self, step: int, final: str) -> str:
        """Return why the *final* answer of a reply of *step* is wrong without a call."""
        empty = gate.why_empty(final) if self._settings.gate else ""
        return self._seen(step, final, empty or self._speaks(step, final))

    def empty(self, reply: str) -> str:
        """Return why *reply* has no content; empty if it has some, or the gate is open."""
        return gate.why_empty(reply, short=True) if self._settings.gate else ""

    def _speaks(self, step: int, text: str) -> str:
        """Return why *text* is not judged, because it speaks to the judge."""
        reason = gate.injection(text) if self._settings.gate else ""
        if reason:
            self._flag(step, text)
        return reason if self._settings.injections == "zero" else ""

    def _seen(self, step: int, reply: str, reason: str) -> str:
        """Count *reply* of *step*, which was stopped for *reason*, unless that is empty; return
        *reason*.
        """
        name = self._name(step, reply)
        if name not in self._reasons:
            self._reasons[name] = reason
            self.counts["replies"] += 1
            self.counts["gated"] += bool(reason)
        return reason

    def _flag(self, step: int, reply: str) -> None:
        """Count *reply* of *step* as one that speaks to the judge."""
        name = self._name(step, reply)
        self.counts["injections"] += name not in self._flagged
        self._flagged.add(name)

    def alert(self) -> str:
        """Return the alert of the present step, if more than the share ``gate_alert`` of its
        replies was stopped; else empty.
        """
        reasons = Counter(filter(None, self._reasons.values()))
        share = reasons.total() / max(len(self._reasons), 1)
        if len(self._reasons) < FEWEST or share <= self._settings.gate_alert:
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
