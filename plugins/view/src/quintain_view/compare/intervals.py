"""Confidence intervals over a few repeated runs, by Student's t.

The unit of evidence here is the *seed*; for tasks within one evaluation see `quintain.evaluation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean over *count* values with its confidence interval; the ends are ``None`` for a single
    value.
    """

    value: float
    low: float | None
    high: float | None
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"mean": self.value, "low": self.low, "high": self.high, "count": self.count}

    def within(self, least: float, most: float) -> Interval:
        """Limit the ends to the range of possible values."""
        low, high = (
            None if end is None else min(max(end, least), most) for end in (self.low, self.high)
        )
        return replace(self, low=low, high=high)


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Compute mean and t interval of independent values (standard deviation with ddof 1).

    Raises:
        ValueError: no values, or one that is not finite.
    """
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        raise ValueError(f"an interval needs finite values, at least one; got {list(values)}")
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(value=mean, low=None, high=None, count=1)
    variance = math.fsum((v - mean) ** 2 for v in values) / (count - 1)
    half = two_sided_t(count - 1, confidence) * math.sqrt(variance / count)
    return Interval(value=mean, low=mean - half, high=mean + half, count=count)


def two_sided_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the quantile of Student's t that a two-sided interval extends to, in standard
    errors.
    """
    return float(stats.t.ppf(0.5 + confidence / 2, freedom))
