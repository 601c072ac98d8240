"""Intervals over seeds and the two fitted laws: known quantiles, parameters found again, honest
refusals.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain_view.compare.fits import NoFit, RepeatedSampling, Sigmoid, repeated_sampling, sigmoid
from quintain_view.compare.intervals import t_interval, two_sided_t

from ....lanes import examples

COMPUTE = [2.0**i for i in range(12)]

# ---------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    "freedom, value",
    [
        (1, 12.7062047),
        (2, 4.30265273),
        (4, 2.77644511),
        (9, 2.26215716),
        (30, 2.04227246),
        (1000, 1.96233908),
    ],
)
def test_widths_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert value == pytest.approx(two_sided_t(freedom), rel=1e-8)


def test_an_interval_over_seeds() -> None:
    """Three values, by hand: mean 2, standard deviation 1, t(2) = 4.303."""
    found = t_interval([1.0, 2.0, 3.0])

    assert found.value == 2.0
    assert found.count == 3
    assert 4.30265273 / math.sqrt(3) == pytest.approx(found.high - 2.0)


def test_an_interval_is_cut_off_where_nothing_can_lie() -> None:
    found = t_interval([0.9, 1.0, 0.8]).within(0.0, 1.0)

    assert found.high == 1.0
    assert 0.65 < (found.low or 0.0) < 0.66
    assert pytest.approx(found.value) == 0.9


def test_one_seed_has_no_interval_and_none_is_refused() -> None:
    one = t_interval([0.5])
    assert one.value == 0.5
    assert one.low is None
    assert one.high is None
    for bad in ([], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="finite"):
            t_interval(bad)


@pytest.mark.more
def test_the_interval_covers_as_often_as_it_says() -> None:
    """Five normal values a time: 95 % of 2,000 intervals hold the mean, to within four standard
    errors.
    """
    draws = np.random.default_rng(0).normal(3.0, 2.0, size=(2000, 5))
    held = [(i := t_interval(row.tolist())).low <= 3.0 <= i.high for row in draws]  # type: ignore[operator]

    assert abs(np.mean(held) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


# -------------------------------------------------------------------------------- the compute curve


def curve(
    compute: list[float], start: float, ceiling: float, midpoint: float, exponent: float
) -> list[float]:
    return [start + (ceiling - start) / (1 + (midpoint / c) ** exponent) for c in compute]


@examples(25)
@given(
    st.floats(0.0, 0.4),
    st.floats(0.1, 0.6),
    st.floats(8.0, 100.0),
    st.floats(0.7, 3.0),
    st.booleans(),
)
def test_the_sigmoid_is_found_again(
    start: float, rise: float, midpoint: float, exponent: float, known: bool
) -> None:
    """Without noise every parameter comes back, with R0 given or not."""
    wide = [c / 8 for c in COMPUTE] + [c * 512 for c in COMPUTE]  # both ends of every curve
    found = sigmoid(
        wide, curve(wide, start, start + rise, midpoint, exponent), start=start if known else None
    )

    assert isinstance(found, Sigmoid)
    assert found.identified
    assert start == pytest.approx(found.start, abs=1e-4)
    assert start + rise == pytest.approx(found.ceiling.value, abs=1e-4)
    assert midpoint == pytest.approx(found.midpoint.value, rel=1e-2)
    assert exponent == pytest.approx(found.exponent.value, rel=1e-2)
    assert found(midpoint) == pytest.approx(start + rise / 2, abs=1e-3)


@pytest.mark.slow
def test_with_noise_the_interval_of_the_ceiling_holds_it() -> None:
    """Of 40 noisy curves the 95 % profile interval misses the ceiling in at most six (binomial,
    beyond 1 in 100).
    """
    draw = np.random.default_rng(1)
    truth = np.array(curve(COMPUTE, 0.2, 0.8, 40.0, 1.2))
    found = [
        sigmoid(COMPUTE, (truth + draw.normal(0, 0.02, 12)).tolist(), start=0.2) for _ in range(40)
    ]
    fits = [f for f in found if isinstance(f, Sigmoid)]

    assert len(fits) == 40
    assert sum(f.ceiling.low <= 0.8 <= f.ceiling.high for f in fits) >= 34
    assert pytest.approx(np.mean([f.spread for f in fits]), rel=0.2) == 0.02
    assert sum(f.midpoint.low <= 40.0 <= f.midpoint.high for f in fits) >= 34


def test_a_curve_that_has_not_bent_has_no_ceiling() -> None:
    """Data from below the midpoint: a fit, but an open ceiling, and no word beyond the data."""
    draw = np.random.default_rng(2)
    early = [c for c in COMPUTE if c < 64]
    noisy = np.array(curve(early, 0.1, 0.9, 2000.0, 1.0)) + draw.normal(0, 0.0002, len(early))
    found = sigmoid(early, noisy.tolist(), start=0.1)

    assert isinstance(found, Sigmoid)
    assert not found.identified
    assert math.inf == found.ceiling.high
    assert "ceiling" in found.reason
    assert found.to_json()["ceiling"]["high"] is None
    assert 0.1 < found(32.0) < 0.2
    with pytest.raises(UsageError, match="says nothing of 1000"):
        found(1000.0)


def test_points_before_training_tell_the_start() -> None:
    found = sigmoid([0.0, 0.0, *COMPUTE], [0.25, 0.35, *curve(COMPUTE, 0.3, 0.9, 20.0, 1.5)])

    assert isinstance(found, Sigmoid)
    assert pytest.approx(found.start) == 0.3
    assert found.start == found(0.0)


@pytest.mark.parametrize(
    "compute, reward, reason",
    [
        ([1, 2, 3], [0.1, 0.2, 0.3], "has 3"),
        (
            [1] * 20,
            [0.1 * (i % 3) for i in range(20)],
            "needs 6 evaluations after different compute, has 1",
        ),
        (COMPUTE, [0.5] * 12, "does not change"),
        (COMPUTE, [0.5 + 0.01 * (-1) ** i for i in range(12)], "no trend"),
        (COMPUTE, [0.9 - c for c in curve(COMPUTE, 0.0, 0.5, 30.0, 2.0)], "falls"),
        (COMPUTE, [math.nan] * 12, "finite"),
        (COMPUTE, [0.5], "one for one"),
    ],
)
def test_what_is_no_sigmoid_is_not_fitted(
    compute: list[float], reward: list[float], reason: str
) -> None:
    found = sigmoid(compute, reward)

    assert isinstance(found, NoFit)
    assert reason in found.reason
    assert not found.to_json()["fitted"]


# -------------------------------------------------------------------------------- repeated sampling


@examples(30)
@given(st.floats(-6.0, -0.05), st.floats(-1.5, -0.05))
def test_the_law_of_repeated_sampling_is_found_again(a: float, b: float) -> None:
    coverage = {k: math.exp(a * k**b) for k in (1, 2, 4, 8, 16, 32)}
    assume(coverage[32] < 1 - 1e-9)
    found = repeated_sampling(coverage)

    assert isinstance(found, RepeatedSampling)
    assert a == pytest.approx(found.a.value, rel=1e-5)
    assert b == pytest.approx(found.b.value, rel=1e-5)
    assert found(64) == pytest.approx(math.exp(a * 64**b), abs=1e-6)
    assert found.a.low <= found.a.value <= found.a.high < 0


def test_with_noise_it_is_found_nearly() -> None:
    draw = np.random.default_rng(3)
    ks = [2**i for i in range(10)]
    found = repeated_sampling(
        {k: math.exp(-2.0 * k**-0.4) + float(draw.normal(0, 0.004)) for k in ks}
    )

    assert isinstance(found, RepeatedSampling)
    assert found.a.low < -2.0 < found.a.high
    assert found.b.low < -0.4 < found.b.high
    assert found.a.high - found.a.low < 0.2


@pytest.mark.parametrize(
    "coverage, reason",
    [
        ({1: 0.2, 2: 0.3}, "needs pass@k for 3 values of k, has 2"),
        ({1: 0.0, 2: 0.0, 4: 0.0}, "coverage is 0"),
        ({1: 1.0, 2: 1.0, 4: 1.0}, "coverage is 1"),
        ({1: 0.4, 2: 0.4, 4: 0.4}, "does not rise"),
        ({1: 0.5, 2: 0.4, 4: 0.3}, "does not rise"),
        ({1: 0.5, 2: 1.4, 4: 0.3}, "between 0 and 1"),
    ],
)
def test_what_does_not_follow_the_law_is_not_fitted(
    coverage: dict[int, float], reason: str
) -> None:
    found = repeated_sampling(coverage)

    assert isinstance(found, NoFit)
    assert reason in found.reason
