"""Two laws fitted to measurements of runs: accuracy against compute, and coverage against attempts.

`NoFit` says why data do not support a law. A curve whose ceiling the data leave open is fitted for
the observed range and refuses to extrapolate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, brentq, least_squares
from scipy.stats import f as f_distribution

from quintain.errors import UsageError
from quintain.store import plain_data

from .intervals import CONFIDENCE, two_sided_t

Array = NDArray[np.float64]

WIDEST = 10.0
"""How many rises above the best ceiling the profile searches for an upper limit."""
TREND = 0.99
"""Confidence with which a curve must beat a constant before it counts as a trend."""
_EXPONENT = (0.05, 30.0)
_PRECISION = 1e-12


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of a fit, whether it succeeded or not."""

    law: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; an open end of an interval is null."""
        values: dict[str, Any] = plain_data(asdict(self) | {"fitted": not isinstance(self, NoFit)})
        return values


@dataclass(frozen=True, kw_only=True)
class NoFit(Fit):
    """Why a law was not fitted."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class FittedParameter:
    """A fitted number and its 95 % interval; an open end is infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Fit):
    """R(C) = start + (ceiling - start) / (1 + (midpoint / C)^exponent); ScaleRL (2510.13786),
    equation 1.

    Attributes:
        start: R0, reward without training.
        ceiling: A; its interval comes from the profile of the sum of squares.
        midpoint: C where half the rise is done, in the units of compute.
        exponent: B.
        identified: the data bound the ceiling from above, to within the rise they show.
        reason: what the data lack where they do not.
        seen: least and greatest compute of the data.
        spread: residual standard deviation.
        points: number of data points.
    """

    law: str = "sigmoid"
    start: float
    ceiling: FittedParameter
    midpoint: FittedParameter
    exponent: FittedParameter
    identified: bool
    reason: str
    seen: tuple[float, float]
    spread: float
    points: int

    def __call__(self, compute: float) -> float:
        """Return the reward at *compute*.

        Raises:
            UsageError: it is beyond the data, and these do not bound the ceiling.
        """
        if compute > self.seen[1] and not self.identified:
            raise UsageError(
                f"the fit ends at {self.seen[1]:g} and says nothing of {compute:g}: {self.reason}; "
                f"train for longer"
            )
        if compute <= 0:
            return self.start
        share = 1 / (1 + math.pow(self.midpoint.value / compute, self.exponent.value))
        return self.start + (self.ceiling.value - self.start) * share


@dataclass(frozen=True, kw_only=True)
class RepeatedSampling(Fit):
    """c(k) = exp(a k^b): coverage (pass@k) of k attempts; Brown et al. 2024 (2407.21787).

    a and b are negative: coverage begins at exp(a) and tends to 1.
    """

    law: str = "repeated_sampling"
    a: FittedParameter
    b: FittedParameter
    spread: float
    points: int

    def __call__(self, attempts: float) -> float:
        return math.exp(self.a.value * attempts**self.b.value)


def _minimize(
    residuals: Callable[[Any], Any],
    start: Sequence[float] | Array,
    bounds: Sequence[tuple[float, float]],
) -> OptimizeResult:
    """Find the least sum of squares within *bounds*; ``cost`` of the result is half of it.

    Derivatives are taken by a complex step (Squire and Trapp 1998), exact to rounding, so
    *residuals* must be analytic.
    """
    low, high = zip(*bounds, strict=True)
    options: dict[str, Any] = {
        "x_scale": "jac",
        "ftol": _PRECISION,
        "xtol": _PRECISION,
        "gtol": _PRECISION,
    }
    with np.errstate(all="ignore"):  # the solver rejects steps that leave the range of floats
        return least_squares(
            residuals, np.clip(start, low, high), jac="cs", bounds=(low, high), **options
        )


def _half_widths(best: OptimizeResult, freedom: int) -> Array:
    """Return the half-widths of t intervals from the covariance s^2 (J'J)^-1; infinite where J does
    not separate parameters.
    """
    scale = np.linalg.norm(best.jac, axis=0)
    if not (scale > 0).all() or np.linalg.cond(best.jac / scale) > 1e6:
        return np.full(len(best.x), np.inf)
    roots = np.linalg.norm(np.linalg.pinv(best.jac / scale), axis=1) / scale
    return np.asarray(two_sided_t(freedom) * roots * math.sqrt(2 * best.cost / freedom))


def sigmoid(
    compute: Sequence[float], reward: Sequence[float], *, start: float | None = None
) -> Sigmoid | NoFit:
    """Fit ScaleRL's compute curve by least squares.

    The interval of the ceiling is where the profile of the sum of squares stays within its F bound:
    where the curve has not bent yet it has no upper end, which a covariance would hide. Intervals
    take the points to be independent; points of one run are not quite, so the intervals are
    narrower than they should be.

    Args:
        compute: of each point, in any unit; points at 0 or below only determine the start.
        reward: mean reward of each point.
        start: R0; by default the mean of the points at compute 0, else a fourth parameter.
    """
    c, r = np.asarray(compute, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    if c.shape != r.shape or not (np.isfinite(c).all() and np.isfinite(r).all()):
        return NoFit(law="sigmoid", reason="compute and reward must be finite, one for one")
    if start is None and (c <= 0).any():
        start = float(r[c <= 0].mean())
    data = _SigmoidData(c=c[c > 0], r=r[c > 0], start=start)
    amounts = len(np.unique(data.c))
    if amounts < data.free + 2:
        return NoFit(
            law="sigmoid",
            reason=f"needs {data.free + 2} evaluations after different compute, has {amounts}",
        )
    return data.fit()


@dataclass(frozen=True, kw_only=True)
class _SigmoidData:
    """The points of a sigmoid. Parameters are ceiling, log midpoint, log exponent and, unless
    known, the start.
    """

    c: Array
    r: Array
    start: float | None

    @property
    def free(self) -> int:
        """The number of free parameters."""
        return 3 if self.start is not None else 4

    @property
    def bounds(self) -> list[tuple[float, float]]:
        logs = np.log(self.c)
        exponent = (math.log(_EXPONENT[0]), math.log(_EXPONENT[1]))
        return [(-np.inf, np.inf), (logs.min() - 5, logs.max() + 12), exponent, (-np.inf, np.inf)][
            : self.free
        ]

    def residuals(self, x: Any) -> Any:
        ceiling, midpoint, exponent, *rest = x
        start = rest[0] if self.start is None else self.start
        # 1 / (1 + e^-u), no overflow
        share = (1 + np.tanh(np.exp(exponent) * (np.log(self.c) - midpoint) / 2)) / 2
        return start + (ceiling - start) * share - self.r

    def fit(self) -> Sigmoid | NoFit:
        freedom = len(self.r) - self.free
        level = float(self.r.mean()) if self.start is None else self.start
        constant_error = float(((self.r - level) ** 2).sum())
        if constant_error <= 1e-18 * max(1.0, float(self.r @ self.r)):
            return NoFit(law="sigmoid", reason="the reward does not change")
        best = min(
            (_minimize(self.residuals, x, self.bounds) for x in self._starts()),
            key=lambda result: result.cost,
        )
        extra = 3  # parameters beyond those of a constant
        trend = f_distribution.ppf(TREND, extra, freedom)
        if constant_error <= 2 * best.cost * (1 + extra * trend / freedom):
            return NoFit(law="sigmoid", reason="no trend beyond the noise")
        start = float(best.x[3]) if self.start is None else self.start
        if best.x[0] <= start:
            return NoFit(law="sigmoid", reason="the reward falls with compute")
        rise = float(self.r.max()) - start
        low, high = (self._ceiling_limit(best, sign * rise, freedom) for sign in (-1, 1))
        reason = ""
        if not math.isfinite(high):
            reason = "the data leave the ceiling open: the curve has hardly bent"
        elif high - low > rise:
            reason = (
                f"the data leave the ceiling between {low:.3g} and {high:.3g}, wider than the rise "
                f"they show"
            )
        widths = _half_widths(best, freedom)
        midpoint, exponent = (_exponential(float(best.x[i]), float(widths[i])) for i in (1, 2))
        return Sigmoid(
            start=start,
            ceiling=FittedParameter(value=float(best.x[0]), low=low, high=high),
            midpoint=midpoint,
            exponent=exponent,
            identified=not reason,
            reason=reason,
            seen=(float(self.c.min()), float(self.c.max())),
            spread=math.sqrt(2 * best.cost / freedom),
            points=len(self.r),
        )

    def _starts(self) -> list[list[float]]:
        """Return the best four of a grid of midpoints and exponents; given these the other
        parameters are linear.
        """
        logs = np.log(self.c)
        width = float(logs.max() - logs.min())
        points = []
        for midpoint in np.linspace(logs.min() - 0.2 * width, logs.max() + 0.5 * width, 15):
            for exponent in (0.3, 0.7, 1.5, 3.0, 6.0):
                share = 1 / (1 + np.exp(exponent * (midpoint - logs)))
                # r = ceiling * share + start * (1 - share)
                offset = np.zeros_like(share) if self.start is None else self.start * (1 - share)
                columns = np.stack([share, 1 - share][: self.free - 2], axis=1)
                (ceiling, *start), *_ = np.linalg.lstsq(columns, self.r - offset, rcond=None)
                x = [float(ceiling), float(midpoint), math.log(exponent), *map(float, start)]
                points.append((float((self.residuals(x) ** 2).sum()), x))
        return [x for _, x in sorted(points)[:4]]

    def _ceiling_limit(self, best: OptimizeResult, rise: float, freedom: int) -> float:
        """Return where the profile leaves its F bound, above the best ceiling or (negative *rise*)
        below; else infinite.
        """
        floor = 1e-20 * float(self.r @ self.r)
        bound = max(2 * best.cost, floor) * (
            1 + f_distribution.ppf(CONFIDENCE, 1, freedom) / freedom
        )

        def profile(ceiling: float, near: Array) -> OptimizeResult:
            return _minimize(lambda y: self.residuals([ceiling, *y]), near, self.bounds[1:])

        inside, near = float(best.x[0]), best.x[1:]
        for step in np.geomspace(1e-3, WIDEST, 20):
            outside = float(best.x[0]) + step * rise
            result = profile(outside, near)
            if 2 * result.cost > bound:
                excess = lambda ceiling, near=near: 2 * profile(ceiling, near).cost - bound  # noqa: E731
                return float(brentq(excess, inside, outside, xtol=1e-6 * abs(rise)))
            inside, near = outside, result.x
        return math.copysign(math.inf, rise)


def _exponential(log: float, half_width: float) -> FittedParameter:
    """Return a parameter that was fitted as its logarithm."""
    low, value, high = (
        math.exp(x) if x < 700 else math.inf for x in (log - half_width, log, log + half_width)
    )
    return FittedParameter(value=value, low=low, high=high)


def repeated_sampling(coverage: Mapping[int, float]) -> RepeatedSampling | NoFit:
    """Fit c(k) = exp(a k^b) to pass@k by least squares.

    Intervals come from the covariance. Values of pass@k from the same samples move together, so the
    intervals say how well the law describes this curve, not how it would differ on other tasks:
    repeat over seeds for that.

    Args:
        coverage: pass@k by k.
    """
    law = "repeated_sampling"
    finite = {k: c for k, c in sorted(coverage.items()) if k >= 1 and math.isfinite(c)}
    if any(not 0 <= c <= 1 for c in finite.values()):
        return NoFit(law=law, reason="coverage must lie between 0 and 1")
    if len(finite) < 3:
        return NoFit(law=law, reason=f"needs pass@k for 3 values of k, has {len(finite)}")
    inner = {k: c for k, c in finite.items() if 0 < c < 1}
    if len(inner) < 2:
        shares = finite.values()
        edge = (
            "0" if all(c <= 0 for c in shares) else "1" if all(c >= 1 for c in shares) else "0 or 1"
        )
        return NoFit(
            law=law,
            reason=f"coverage is {edge} at all but {len(inner)} of {len(finite)} numbers of attempts",
        )
    k = np.array(list(finite), dtype=np.float64)
    c = np.array(list(finite.values()), dtype=np.float64)
    log_k = np.log(np.array(list(inner), dtype=np.float64))
    log_rate = np.log(-np.log(np.array(list(inner.values()))))
    slope, intercept = np.polyfit(log_k, log_rate, 1)  # log(-log c) = log(-a) + b log k

    def residuals(x: Any) -> Any:
        return np.exp(-np.exp(x[0] + x[1] * np.log(k))) - c

    best = _minimize(residuals, [float(intercept), float(slope)], [(-30.0, 7.0), (-20.0, 5.0)])
    log_a, b = map(float, best.x)
    if b >= -1e-9:
        return NoFit(law=law, reason="coverage does not rise with attempts")
    freedom = len(k) - 2
    width_a, width_b = map(float, _half_widths(best, freedom))
    minus_a = _exponential(log_a, width_a)
    return RepeatedSampling(
        a=FittedParameter(value=-minus_a.value, low=-minus_a.high, high=-minus_a.low),
        b=FittedParameter(value=b, low=b - width_b, high=b + width_b),
        spread=math.sqrt(2 * best.cost / freedom),
        points=len(k),
    )
