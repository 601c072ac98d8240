"""Distributions of lengths and waits, as they are written in a setup."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from quintain.errors import UsageError

FORMS = (
    "a number, a list of numbers, or lognormal:MEDIAN,SIGMA[,MAX], exponential:MEAN[,MAX], "
    "uniform:LOW,HIGH or mixture:VALUE*WEIGHT,VALUE*WEIGHT,..."
)


@dataclass(frozen=True)
class Distribution:
    """Draws numbers of at least 0.

    Attributes:
        text: as it was written.
    """

    text: str
    _draw: Callable[[Random], float]

    def draw(self, random: Random) -> float:
        """Return one number."""
        return self._draw(random)

    @classmethod
    def parse(cls, written: float | str | Sequence[float]) -> Distribution:
        """Return the distribution of *written*: see `FORMS`.

        Raises:
            UsageError: it is none of the forms, or a number is negative.
        """
        try:
            if isinstance(written, (int, float)):
                return cls(repr(written), _constant(_positive(written)))
            if not isinstance(written, str):
                text = "mixture:" + ",".join(f"{_positive(value)!r}*1" for value in written)
            else:
                text = written
            name, _, rest = text.partition(":")
            if not rest:
                return cls(text, _constant(_positive(float(name))))
            if name == "mixture":
                pairs = [part.split("*") for part in rest.split(",")]
                weights = [_positive(float(weight)) for _, weight in pairs]
                return cls(text, _mixture([_positive(float(v)) for v, _ in pairs], weights))
            numbers = [_positive(float(part)) for part in rest.split(",")]
            return cls(text, NAMES[name](*numbers))
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise UsageError(f"{written!r} is no distribution; expected {FORMS}") from e


def _positive(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(value)
    return float(value)


def _constant(value: float) -> Callable[[Random], float]:
    return lambda random: value


def _mixture(values: Sequence[float], weights: Sequence[float]) -> Callable[[Random], float]:
    if not sum(weights):
        raise ValueError("no weights")
    return lambda random: random.choices(values, weights)[0]


def _lognormal(median: float, sigma: float, most: float = math.inf) -> Callable[[Random], float]:
    return lambda random: min(most, median * math.exp(random.gauss(0.0, sigma)))


def _exponential(mean: float, most: float = math.inf) -> Callable[[Random], float]:
    return lambda random: min(most, random.expovariate(1.0) * mean)


def _uniform(low: float, high: float) -> Callable[[Random], float]:
    return lambda random: random.uniform(low, high)


NAMES: dict[str, Callable[..., Callable[[Random], float]]] = {
    "lognormal": _lognormal,
    "exponential": _exponential,
    "uniform": _uniform,
}
