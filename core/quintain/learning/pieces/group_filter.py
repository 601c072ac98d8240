"""Group filter: which complete groups train. Reads the outcome, so that shaping cannot make a
solved group look undecided.
"""

from __future__ import annotations

from ...interfaces.algorithm import GroupStats
from ...interfaces.pieces import group_filter
from ...types.rollout import SPREAD_TOLERANCE, are_equal


@group_filter
def minimum(stats: GroupStats, *, samples: int = 2) -> str:
    """At least *samples* valid samples."""
    valid = len(stats.outcomes)
    return (
        "" if valid >= samples else f"{valid} of {stats.requested} samples valid, {samples} needed"
    )


@group_filter
def varied(
    stats: GroupStats, *, samples: int = 2, tolerance: float = SPREAD_TOLERANCE, total: bool = False
) -> str:
    """At least *samples* valid samples, and outcomes that are not all the same (dynamic sampling;
    DAPO, 2503.14476, equation 11).

    With *total*, a group whose outcomes agree is rejected only if its totals agree, too, so that
    shaping, by length say, still acts on tasks that are solved.
    """
    rejected = str(minimum(stats, samples=samples))
    if rejected or not are_equal(stats.outcomes, tolerance):
        return rejected
    if total:
        return "all rewards equal" if are_equal(stats.totals, tolerance) else ""
    return "all outcomes equal"
