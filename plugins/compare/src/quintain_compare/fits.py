"""Two laws fitted to what runs measured: reward against compute, and coverage against attempts.

A fit that the data do not support is not given: `NoFit` says why. One whose ceiling the data leave open is given for
the range that was seen and refuses to look beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quintain.errors import UsageError

from .intervals import CONFIDENCE, f_quantile, t_quantile

Array = NDArray[np.float64]
Residuals = Callable[[Any], Any]

WIDEST = 10.0
"""How many rises above the best ceiling the profile looks for an upper limit."""
TREND = 0.99
"""Confidence with which a curve must beat a constant before it counts as one."""
_STEPS = 100
_CHECKS = 20
_BETA = (math.log(0.05), math.log(30.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class NoFit:
    """Why a *law* was not fitted."""

    law: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"law": self.law, "fitted": False, "reason": self.reason}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A fitted number and its 95 % interval; an open end is infinite."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """Plain data; an open end is null."""
        ends = {"low": self.low, "high": self.high}
        return {"value": self.value} | {k: v if math.isfinite(v) else None for k, v in ends.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sigmoid:
    """R(C) = start + (ceiling - start) / (1 + (midpoint / C)^exponent); ScaleRL (2510.13786), equation 1.

    Attributes:
        start: R0, reward without training.
        ceiling: A; its interval is from the profile of the sum of squares.
        midpoint: C where half the rise is done, in the units of compute.
        exponent: B.
        identified: the data bound the ceiling from above, to within the rise they show.
        reason: what is missing where they do not.
        seen: least and greatest compute of the data.
        spread: residual standard deviation.
        points: how many data there were.
    """

    start: float
    ceiling: Parameter
    midpoint: Parameter
    exponent: Parameter
    identified: bool
    reason: str
    seen: tuple[float, float]
    spread: float
    points: int

    def __call__(self, compute: float) -> float:
        """The reward at *compute*.

        Raises:
            UsageError: it is beyond the data and these do not bound the ceiling.
        """
        if compute > self.seen[1] and not self.identified:
            raise UsageError(
                f"the fit ends at {self.seen[1]:g} and says nothing of {compute:g}: {self.reason}; train for longer"
            )
        if compute <= 0:
            return self.start
        share = 1 / (1 + math.pow(self.midpoint.value / compute, self.exponent.value))
        return self.start + (self.ceiling.value - self.start) * share

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        parts = {name: getattr(self, name).to_json() for name in ("ceiling", "midpoint", "exponent")}
        told = {name: getattr(self, name) for name in ("start", "identified", "reason", "spread", "points")}
        return {"law": "sigmoid", "fitted": True, **parts, **told, "seen": list(self.seen)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedSampling:
    """c(k) = exp(a k^b): coverage (pass@k) of k attempts; Brown et al. 2024 (2407.21787).

    a and b are negative: coverage begins at exp(a) and tends to 1.
    """

    a: Parameter
    b: Parameter
    spread: float
    points: int

    def __call__(self, attempts: float) -> float:
        return math.exp(self.a.value * attempts**self.b.value)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        parts = {"a": self.a.to_json(), "b": self.b.to_json()}
        return {"law": "repeated_sampling", "fitted": True, **parts, "spread": self.spread, "points": self.points}


@dataclass(frozen=True, kw_only=True)
class Minimum:
    """Where least squares ended: parameters, sum of squares, Jacobian of the residuals."""

    x: Array
    squares: float
    jacobian: Array

    def errors(self, freedom: int) -> Array:
        """Standard errors, s^2 (J'J)^-1; infinite where the data do not tell a parameter from the others."""
        normal = self.jacobian.T @ self.jacobian
        scale = np.sqrt(np.diag(normal))
        if not (scale > 0).all() or np.linalg.cond(normal / np.outer(scale, scale)) > 1e12:
            return np.full(len(self.x), np.inf)
        inverse = np.linalg.inv(normal / np.outer(scale, scale)) / np.outer(scale, scale)
        return np.asarray(np.sqrt(np.diag(inverse) * self.squares / freedom))


def least_squares(
    residuals: Residuals, start: Sequence[float], bounds: Sequence[tuple[float, float]] | None = None
) -> Minimum:
    """Levenberg-Marquardt (Marquardt 1963, with his diagonal scaling) in float64.

    Args:
        residuals: of a parameter vector; made of analytic NumPy functions, since derivatives are taken by a complex
            step (Squire and Trapp 1998), exact to rounding.
        bounds: low and high of each parameter; a step that leaves them is cut back.
    """
    low, high = np.array(bounds or [(-np.inf, np.inf)] * len(start), dtype=np.float64).T
    x = np.clip(np.asarray(start, dtype=np.float64), low, high)
    found = _at(residuals, x)
    damping = 1e-3
    for _ in range(_STEPS):
        r = np.asarray(residuals(found.x), dtype=np.float64)
        gradient = found.jacobian.T @ r
        normal = found.jacobian.T @ found.jacobian
        scale = np.maximum(np.diag(normal), 1e-12 * max(1e-300, float(np.diag(normal).max())))
        while damping < 1e12:
            step = np.linalg.solve(normal + damping * np.diag(scale + 1e-300), -gradient)
            trial = np.clip(found.x + step, low, high)
            with np.errstate(over="ignore", invalid="ignore"):
                squares = float(np.sum(np.asarray(residuals(trial), dtype=np.float64) ** 2))
            if squares <= found.squares:  # a NaN is refused, too
                break
            damping *= 4
        else:
            return found
        moved = float(np.abs(trial - found.x).max() / (1 + np.abs(found.x).max()))
        gained = found.squares - squares
        found, damping = _at(residuals, trial), max(damping / 9, 1e-12)
        if moved < 1e-11 or gained <= 1e-10 * found.squares:
            return found
    return found


def _at(residuals: Residuals, x: Array) -> Minimum:
    columns = []
    for i in range(len(x)):
        moved = x.astype(complex)
        moved[i] += 1e-30j
        columns.append(np.imag(residuals(moved)) / 1e-30)
    value = np.asarray(residuals(x), dtype=np.float64)
    return Minimum(x=x, squares=float(value @ value), jacobian=np.stack(columns, axis=1).astype(np.float64))


def sigmoid(compute: Sequence[float], reward: Sequence[float], *, start: float | None = None) -> Sigmoid | NoFit:
    """Fit ScaleRL's compute curve by least squares.

    The interval of the ceiling is where the profile of the sum of squares stays within its F bound: where the curve has
    not bent yet that has no upper end, which a covariance would hide. Intervals take the points to be independent;
    points of one run are not quite, so they are narrower than they should be.

    Args:
        compute: of each point, in any unit; those at 0 or below only tell the start.
        reward: mean reward of each point.
        start: R0; by default the mean of the points at compute 0, else fitted too.
    """
    c, r = np.asarray(compute, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    if c.shape != r.shape or not (np.isfinite(c).all() and np.isfinite(r).all()):
        return NoFit(law="sigmoid", reason="compute and reward must be finite, one for one")
    if start is None and (c <= 0).any():
        start = float(r[c <= 0].mean())
    c, r = c[c > 0], r[c > 0]
    free = 3 if start is not None else 4
    distinct = len(np.unique(c))
    if distinct < free + 2:
        return NoFit(law="sigmoid", reason=f"{distinct} amounts of compute; {free} parameters need at least {free + 2}")
    return _Curve(c=c, r=r, start=start).fit()


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """The data of a sigmoid. Parameters are (ceiling, log midpoint, log exponent) and, where it is free, the start."""

    c: Array
    r: Array
    start: float | None

    @property
    def bounds(self) -> list[tuple[float, float]]:
        least, most = math.log(self.c.min()), math.log(self.c.max())
        return [(-np.inf, np.inf), (least - 5, most + 12), _BETA, (-np.inf, np.inf)]

    @property
    def free(self) -> int:
        return 3 if self.start is not None else 4

    def residuals(self, x: Any, ceiling: float | None = None) -> Any:
        """*ceiling* fixes the first parameter, which *x* then lacks."""
        top, middle, exponent, *rest = x if ceiling is None else (ceiling, *x)
        start = self.start if self.start is not None else rest[0]
        below = np.exp(exponent) * (middle - np.log(self.c))
        share = 1 / (1 + np.exp(np.where(np.real(below) > 600, 600.0, below)))
        return start + (top - start) * share - self.r

    def fit(self) -> Sigmoid | NoFit:
        freedom = len(self.r) - self.free
        best = min((least_squares(self.residuals, x, self.bounds[: self.free]) for x in self.starts()), key=_squares)
        start = self.start if self.start is not None else float(best.x[3])
        level = self.start if self.start is not None else float(self.r.mean())
        flat = float(((self.r - level) ** 2).sum())
        if flat <= 1e-18 * max(1.0, float(self.r @ self.r)):
            return NoFit(law="sigmoid", reason="the reward does not change")
        more = self.free if self.start is not None else self.free - 1
        needed = best.squares * (1 + more * f_quantile(TREND, more, freedom) / freedom)
        if flat <= needed:
            return NoFit(law="sigmoid", reason="no trend beyond the noise")
        if best.x[0] <= start:
            return NoFit(law="sigmoid", reason="the reward falls with compute")
        return self._told(best, start, freedom)

    def _told(self, best: Minimum, start: float, freedom: int) -> Sigmoid:
        rise = float(self.r.max()) - start
        low, high = (self._limit(best, sign, rise, freedom) for sign in (-1.0, 1.0))
        ceiling = Parameter(value=float(best.x[0]), low=low, high=high)
        reason = ""
        if not math.isfinite(high):
            reason = "the data leave the ceiling open: the curve has hardly bent"
        elif high - low > rise:
            reason = f"the data leave the ceiling between {low:.3g} and {high:.3g}, wider than the rise they show"
        width = t_quantile(0.5 + CONFIDENCE / 2, freedom) * best.errors(freedom)
        middle, exponent = (
            Parameter(
                value=float(np.exp(best.x[i])),
                low=_exp(float(best.x[i] - width[i])),
                high=_exp(float(best.x[i] + width[i])),
            )
            for i in (1, 2)
        )
        return Sigmoid(
            start=start,
            ceiling=ceiling,
            midpoint=middle,
            exponent=exponent,
            identified=not reason,
            reason=reason,
            seen=(float(self.c.min()), float(self.c.max())),
            spread=math.sqrt(best.squares / freedom),
            points=len(self.r),
        )

    def starts(self) -> list[list[float]]:
        """The best of a grid of midpoints and exponents; given these the other parameters are linear."""
        logs = np.log(self.c)
        width = float(logs.max() - logs.min())
        found = []
        for middle in np.linspace(logs.min() - 0.2 * width, logs.max() + 0.5 * width, 15):
            for exponent in (0.3, 0.7, 1.5, 3.0, 6.0):
                share = 1 / (1 + np.exp(exponent * (middle - logs)))
                if self.start is not None:
                    rise = float(share @ (self.r - self.start)) / float(share @ share)
                    x = [self.start + rise, float(middle), math.log(exponent)]
                else:
                    (foot, rise), *_ = np.linalg.lstsq(np.stack([np.ones_like(share), share], 1), self.r, rcond=None)
                    x = [float(foot + rise), float(middle), math.log(exponent), float(foot)]
                found.append((float((self.residuals(x) ** 2).sum()), x))
        return [x for _, x in sorted(found)[:4]]

    def _limit(self, best: Minimum, sign: float, rise: float, freedom: int) -> float:
        """Where, below or above the best ceiling, the profile leaves its bound; infinite where it does not."""
        floor = 1e-20 * float(self.r @ self.r)
        bound = max(best.squares, floor) * (1 + f_quantile(CONFIDENCE, 1, freedom) / freedom)
        inside, x = float(best.x[0]), best.x[1:]
        outside = math.nan
        for step in np.geomspace(1e-3, WIDEST, _CHECKS):
            ceiling = float(best.x[0] + sign * step * rise)
            tried = self._profile(ceiling, x)
            if tried.squares > bound:
                outside = ceiling
                break
            inside, x = ceiling, tried.x
        if math.isnan(outside):
            return sign * math.inf
        while abs(outside - inside) > 1e-3 * rise and abs(outside - inside) > 1e-3 * abs(inside - best.x[0]):
            middle = (inside + outside) / 2
            tried = self._profile(middle, x)
            inside, outside = (middle, outside) if tried.squares <= bound else (inside, middle)
        return inside

    def _profile(self, ceiling: float, x: Array) -> Minimum:
        """The best fit with that *ceiling*, from *x* on."""
        return least_squares(lambda y: self.residuals(y, ceiling), list(x), self.bounds[1 : self.free])


def _squares(found: Minimum) -> float:
    return found.squares


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def repeated_sampling(coverage: Mapping[int, float]) -> RepeatedSampling | NoFit:
    """Fit c(k) = exp(a k^b) to pass@k by least squares.

    Intervals come from the covariance. Values of pass@k from the same samples move together, so they tell how well the
    law describes this curve, not how it would differ on other tasks: repeat over seeds for that.

    Args:
        coverage: pass@k by k.
    """
    law = "repeated_sampling"
    known = {k: c for k, c in sorted(coverage.items()) if k >= 1 and math.isfinite(c)}
    if any(not 0 <= c <= 1 for c in known.values()):
        return NoFit(law=law, reason="coverage must lie between 0 and 1")
    if len(known) < 3:
        return NoFit(law=law, reason=f"{len(known)} numbers of attempts; 2 parameters need at least 3")
    inner = {k: c for k, c in known.items() if 0 < c < 1}
    if len(inner) < 2:
        edge = "0" if all(c <= 0 for c in known.values()) else "1" if all(c >= 1 for c in known.values()) else "0 or 1"
        return NoFit(law=law, reason=f"coverage is {edge} at all but {len(inner)} of {len(known)} numbers of attempts")
    k, c = np.array(list(known), dtype=np.float64), np.array(list(known.values()), dtype=np.float64)
    at, lost = np.log(np.array(list(inner), dtype=np.float64)), np.log(-np.log(np.array(list(inner.values()))))
    slope = float(np.polyfit(at, lost, 1)[0])
    first = float(lost.mean() - slope * at.mean())

    def residuals(x: Any) -> Any:
        return np.exp(-np.exp(x[0] + x[1] * np.log(k))) - c

    best = least_squares(residuals, [first, slope], [(-30.0, 7.0), (-20.0, 5.0)])
    if best.x[1] >= -1e-9:
        return NoFit(law=law, reason="coverage does not rise with attempts")
    freedom = len(k) - 2
    width = t_quantile(0.5 + CONFIDENCE / 2, freedom) * best.errors(freedom)
    ends = [(float(v - w), float(v + w)) for v, w in zip(best.x, width, strict=True)]
    a = Parameter(value=-math.exp(best.x[0]), low=-_exp(ends[0][1]), high=-_exp(ends[0][0]))
    b = Parameter(value=float(best.x[1]), low=ends[1][0], high=ends[1][1])
    return RepeatedSampling(a=a, b=b, spread=math.sqrt(best.squares / freedom), points=len(k))
