"""What may be tried again, and after how long."""

from __future__ import annotations

from random import Random

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses of failures that may pass."""
LONGEST_WAIT = 60.0
"""Seconds between two tries, at most."""

__all__ = ["LONGEST_WAIT", "RETRIED", "wait_before_retry"]


def wait_before_retry(
    backoff: float, tries: int, rng: Random, *, asked: float = 0.0, longest: float = LONGEST_WAIT
) -> float:
    """Return the seconds to wait before the next try: *backoff*, doubled with each of the *tries*
    before, within a factor of 0.5 to 1.5.

    Args:
        asked: seconds that the server asks for, which count if they are more.
        longest: of what doubles.
    """
    doubled = min(backoff * 2.0 ** min(tries, 20), longest)
    return min(max(doubled * (0.5 + rng.random()), asked), LONGEST_WAIT)
