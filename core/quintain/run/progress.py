"""How far a run has come: its counters, and the seconds of each phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..rollouts.spans import Span
from ..types.rollout import AnyGroup


class Clock:
    """Adds up the seconds of each phase in all *totals*, of which the first is `spent`."""

    def __init__(self, *totals: dict[str, float]) -> None:
        self._totals = totals
        self.spent = totals[0]

    def fork(self) -> Clock:
        """Return a new clock that also adds to this one."""
        return Clock({}, *self._totals)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            with Span(phase):
                yield
        finally:
            self.add(phase, time.monotonic() - began)

    def add(self, phase: str, seconds: float) -> None:
        """Count *seconds* of *phase*."""
        for total in self._totals:
            total[phase] = total.get(phase, 0.0) + seconds


@dataclass
class RunProgress:
    """The counters of a run; every checkpoint has them.

    Attributes:
        step: the last complete step.
        samples, tokens: rollouts run and tokens sampled.
        seconds: by phase, over all processes of the run.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def clock(self) -> Clock:
        """The clock of the whole run, over all its processes."""
        return Clock(self.seconds)

    def due(self, every: int) -> bool:
        """Return whether an action of every *every* steps is due after this step; 0 is never."""
        return every > 0 and self.step % every == 0

    def complete(self, step: int, groups: Sequence[AnyGroup]) -> None:
        """Count a step and all the *groups* that were sampled for it."""
        self.step = step
        for group in groups:
            self.samples += len(group.rollouts)
            self.tokens += sum(rollout.tokens for rollout in group.rollouts)
