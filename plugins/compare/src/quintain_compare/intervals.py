"""How sure a handful of repeated runs makes one: Student's t, in float64 and without a statistics library.

The unit of evidence here is the *seed*; for tasks within one evaluation see `quintain.evaluation.estimates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

CONFIDENCE = 0.95
_TINY = 1e-300
_ITERATIONS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean over *count* values with its confidence interval; no interval (``None``) from a single value."""

    value: float
    low: float | None
    high: float | None
    count: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"mean": self.value, "low": self.low, "high": self.high, "count": self.count}

    def within(self, least: float, most: float) -> Interval:
        """The same, cut off where values cannot lie."""
        low, high = (None if end is None else min(max(end, least), most) for end in (self.low, self.high))
        return Interval(value=self.value, low=low, high=high, count=self.count)


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean and t interval of independent values (standard deviation with ddof 1).

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
    half = t_quantile(0.5 + confidence / 2, count - 1) * math.sqrt(variance / count)
    return Interval(value=mean, low=mean - half, high=mean + half, count=count)


@cache
def t_quantile(probability: float, freedom: float) -> float:
    """The point that Student's t with *freedom* degrees stays below with *probability*.

    Raises:
        ValueError: a probability outside (0, 1), or no positive number of degrees.
    """
    _check(probability, freedom)
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    return _inverse(lambda t: 1 - beta_share(freedom / (freedom + t * t), freedom / 2, 0.5) / 2, probability)


@cache
def f_quantile(probability: float, upper: float, lower: float) -> float:
    """The point that F with *upper* and *lower* degrees of freedom stays below with *probability*.

    Raises:
        ValueError: as `t_quantile`.
    """
    _check(probability, min(upper, lower))
    return _inverse(lambda f: beta_share(upper * f / (upper * f + lower), upper / 2, lower / 2), probability)


def beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun, 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - beta_share(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation, modified so that no denominator is 0."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _ITERATIONS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _away(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


def _inverse(share: Callable[[float], float], probability: float) -> float:
    """Where the rising function *share* of a number >= 0 reaches *probability*, by bisection."""
    high = 1.0
    while share(high) < probability and high < 1e12:
        high *= 2
    low = 0.0
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < probability else (low, middle)
    return high


def _check(probability: float, freedom: float) -> None:
    if not 0 < probability < 1 or not freedom > 0:
        raise ValueError(f"probability {probability}, degrees of freedom {freedom}; expected within (0, 1), above 0")
