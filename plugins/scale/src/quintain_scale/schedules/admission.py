"""How many turns a replica gets at once: as many as its cache holds, found by trying."""

from __future__ import annotations

from quintain.errors import UsageError
from quintain.interfaces import Pressure

CACHE_HIGH = 0.92
"""Share of the cache above which a replica is about to preempt turns."""
BACK = 0.75
"""What is left of the limit after a decrease."""


class TurnLimit:
    """The limit of one replica: additive increase, multiplicative decrease.

    Each observation of the engine moves the limit. It falls to three quarters when the engine has
    preempted turns or its cache is nearly full, and to no less than what runs when turns only wait
    for a place. It does not fall again before the turns above it have ended. It grows by one while
    it is used and nothing is pressed; until the first pressure it doubles.

    Args:
        most: bound of the limit, at least 1.

    Raises:
        UsageError: the bound is out of range.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise UsageError(f"admission of at most {most} turns; expected at least 1")
        self.most = most
        self._limit = float(max(1, most // 8))
        self._preemptions: int | None = None
        self._searching = True

    @property
    def limit(self) -> int:
        """Turns that the replica may have at once."""
        return int(self._limit)

    def observe(self, pressure: Pressure, turns: int) -> None:
        """Take what the engine says while it has *turns* turns of ours."""
        before, self._preemptions = self._preemptions, pressure.preemptions
        preempted = before is not None and pressure.preemptions > before
        full = preempted or pressure.cache_used > CACHE_HIGH
        if full or pressure.waiting:
            self._searching = False
            if turns > self.limit:
                return  # the last decrease has not come into effect
            floor = 1 if full else max(1, pressure.running)
            self._limit = min(self._limit, max(floor, BACK * self._limit))
        elif turns >= self.limit:
            grown = 2 * self._limit if self._searching else self._limit + 1
            self._limit = min(float(self.most), grown)
