"""The time in which the learner, or all that samples, has nothing to do."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class IdleShares:
    """What a step took: *seconds*, and the shares of them in which learner and sampler waited."""

    seconds: float
    learner: float
    sampler: float


class IdleTime:
    """Adds up idle times between two looks at them; the sampler is idle at first."""

    def __init__(self) -> None:
        self._since = time.monotonic()  # the last look
        self._learner = 0.0
        self._sampler = 0.0
        self._idle_from: float | None = self._since  # of the sampler; `None` while it works

    def learner_waited(self, seconds: float) -> None:
        """Count *seconds* in which the learner waited for a batch."""
        self._learner += seconds

    def sampler_starts(self) -> None:
        """Note that there are episodes to sample."""
        if self._idle_from is not None:
            self._sampler += time.monotonic() - self._idle_from
            self._idle_from = None

    def sampler_ends(self) -> None:
        """Note that there are none."""
        self._idle_from = time.monotonic()

    def measured(self) -> IdleShares:
        """Return what passed since the last call."""
        now = time.monotonic()
        seconds = max(now - self._since, 1e-9)
        sampler = self._sampler
        if self._idle_from is not None:
            sampler += now - self._idle_from
            self._idle_from = now
        measured = IdleShares(
            seconds=seconds,
            learner=min(1.0, self._learner / seconds),
            sampler=min(1.0, sampler / seconds),
        )
        self._since = now
        self._learner = self._sampler = 0.0
        return measured
