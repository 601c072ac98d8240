"""pass@k and cons@k against enumeration, intervals against simulation."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.evaluation.estimates import (
    Answer,
    cons_at_k,
    default_ks,
    mean,
    pass_at_k,
    proportion,
    rank_correlation,
    student_quantile,
    wilson,
)

from ...lanes import examples

answers_strategy = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from([0.0, 1.0])),
    min_size=1,
    max_size=8,
)


def enumerated_cons(answers: list[Answer], k: int) -> float:
    """Mean over every subset of k samples of how right the winners are, straight from the
    definition.
    """
    right = {a: [v for b, v in answers if b == a] for a, _ in answers}
    total, n = 0.0, 0
    for subset in itertools.combinations(answers, k):
        n += 1
        cast = [a for a, _ in subset if a is not None]
        if cast:
            most = max(cast.count(a) for a in set(cast))
            winners = [a for a in set(cast) if cast.count(a) == most]
            total += sum(sum(right[a]) / len(right[a]) for a in winners) / len(winners)
    return total / n


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    subsets = list(itertools.combinations(right, k))
    expected = sum(any(s) for s in subsets) / len(subsets)
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(expected, abs=1e-12)


@given(answers_strategy, st.data())
@examples(150)
def test_cons_at_k_is_the_mean_over_all_subsets(answers: list[Answer], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    assert cons_at_k(answers, k) == pytest.approx(enumerated_cons(answers, k), abs=1e-12)


@given(answers_strategy, st.randoms(use_true_random=False), st.data())
@settings(deadline=None)
def test_cons_at_k_does_not_depend_on_the_order(
    answers: list[Answer], rng: Random, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(answers)))
    shuffled = rng.sample(answers, len(answers))
    assert cons_at_k(shuffled, k) == pytest.approx(cons_at_k(answers, k), abs=1e-12)


def test_known_values() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    assert pass_at_k(10, 0, 10) == 0.0
    assert cons_at_k([("5", 1.0), ("5", 1.0), ("6", 0.0)], 3) == 1.0
    assert cons_at_k([("5", 1.0), ("6", 0.0)], 2) == 0.5  # a tie
    assert cons_at_k([(None, 0.0), (None, 0.0)], 2) == 0.0
    assert cons_at_k([(None, 0.0), ("5", 1.0)], 2) == 1.0  # silence is no vote


def test_cons_at_k_of_many_samples_is_quick_and_sane() -> None:
    answers: list[Answer] = [("right", 1.0)] * 24 + [(f"wrong {i % 20}", 0.0) for i in range(40)]
    assert cons_at_k(answers, 64) == 1.0
    assert 24 / 64 < cons_at_k(answers, 8) < cons_at_k(answers, 32) <= 1.0


@pytest.mark.parametrize(
    "samples, right, k", [(4, 1, 0), (4, 1, 5), (4, 5, 1), (0, 0, 1), (4, -1, 1)]
)
def test_impossible_counts_are_refused(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(samples, right, k)


def test_wilson_against_published_values() -> None:
    # Newcombe 1998, table I, method 3 (score): 81/263, 15/148, 0/20, 1/29.
    table = (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    )
    for right, n, low, high in table:
        assert wilson(right / n, n) == pytest.approx((low, high), abs=5e-5)


def test_one_sample_per_task_is_wilson() -> None:
    values = [1.0] * 7 + [0.0] * 3
    e = proportion(values, [1] * 10)
    assert (e.low, e.high) == pytest.approx(wilson(0.7, 10))
    assert e.value == pytest.approx(0.7)
    assert e.tasks == 10
    assert e.samples == 10


def test_all_right_is_not_certain() -> None:
    e = proportion([1.0] * 5, [8] * 5)
    assert e.value == 1.0
    assert e.high == 1.0
    assert e.low == pytest.approx(wilson(1.0, 5)[0])
    assert e.low < 0.6


def test_samples_of_one_task_count_for_less_than_samples_of_many() -> None:
    correlated = proportion([1.0, 0.0] * 10, [8] * 20)
    independent = proportion([0.5, 0.375, 0.625, 0.5] * 5, [8] * 20)
    assert correlated.effective == pytest.approx(20)
    assert independent.effective == 160
    assert independent.high - independent.low < 0.5 * (correlated.high - correlated.low)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 16)), min_size=1, max_size=30))
def test_the_interval_holds_the_value_and_stays_inside(rows: list[tuple[float, int]]) -> None:
    e = proportion([v for v, _ in rows], [n for _, n in rows])
    assert 0 <= e.low <= e.value + 1e-12
    assert e.value - 1e-12 <= e.high <= 1


@pytest.mark.parametrize(
    "tasks, samples, a, b", [(30, 1, 7, 3), (30, 4, 0.6, 0.6), (60, 8, 3, 1), (40, 8, 0.3, 1.2)]
)
def test_coverage_of_clustered_samples(tasks: int, samples: int, a: float, b: float) -> None:
    rng = Random(f"{tasks} {samples} {a} {b}")
    hits, trials = 0, 600
    for _ in range(trials):
        skills = [rng.betavariate(a, b) for _ in range(tasks)]
        values = [sum(rng.random() < s for _ in range(samples)) / samples for s in skills]
        e = proportion(values, [samples] * tasks)
        hits += e.low <= a / (a + b) <= e.high
    # Three standard errors of 600 trials are 0.027; an interval that ignored the clusters covers
    # less than 0.85 here.
    assert 0.915 <= hits / trials <= 0.985


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 199, 1000, 1001])
def test_the_quantile_is_that_of_students_t(degrees: int, confidence: float) -> None:
    expected = scipy.stats.t.ppf(0.5 + confidence / 2, degrees)
    assert student_quantile(degrees, confidence) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 8, 40])
def test_the_quantile_of_few_degrees_is_exact(degrees: int) -> None:
    expected = scipy.stats.t.ppf(0.975, degrees)
    assert student_quantile(degrees) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tasks", [3, 5, 10, 30])
@pytest.mark.parametrize("samples", [1, 4])
def test_coverage_of_a_mean_of_few_tasks(tasks: int, samples: int) -> None:
    """Outcomes around the mean of their task, and these around 2."""
    rng = Random(f"{tasks} {samples}")
    trials = 3000
    hits = 0
    for _ in range(trials):
        means = [rng.gauss(2.0, 1.0) for _ in range(tasks)]
        values = [sum(rng.gauss(m, 0.5) for _ in range(samples)) / samples for m in means]
        e = mean(values, [samples] * tasks)
        hits += e.low <= 2.0 <= e.high
    assert 0.93 <= hits / trials <= 0.97


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1.0] * 5, wilson(1.0, 5)[0], 1.0),
        ([0.0], 0.0, wilson(0.0, 1)[1]),
        ([0.5] * 3, *wilson(0.5, 3)),
        ([4.0] * 3, 4 * wilson(1.0, 3)[0], 4.0),
        ([-3.0] * 2, -3.0, -3.0 + 4 * wilson(0.0, 2)[1]),
    ],
)
def test_equal_values_are_not_certain(values: list[float], low: float, high: float) -> None:
    e = mean(values, [1] * len(values))
    assert (e.low, e.high) == pytest.approx((low, high))


def test_mean_with_students_interval() -> None:
    e = mean([-1.0, 1.0, 3.0, 5.0], [2, 2, 2, 2])
    half = 3.182446 * math.sqrt((20 / 3) / 4)
    assert (e.value, e.low, e.high) == pytest.approx((2.0, 2.0 - half, 2.0 + half), abs=1e-5)


def test_estimates_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        proportion([], [])
    with pytest.raises(ValueError, match="at least one task"):
        mean([], [])
    with pytest.raises(ValueError, match="0 to 1"):
        proportion([1.5], [1])
    with pytest.raises(ValueError, match="confidence"):
        proportion([0.5], [1], confidence=95)


def test_rank_correlation_is_spearmans_with_mean_ranks() -> None:
    """1 - 6 sum d^2 / (n (n^2 - 1)) without ties; with ties Pearson's correlation of mean ranks."""
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert rank_correlation([1, 2, 3], [0, 0, 1]) == pytest.approx(1.5 / math.sqrt(2 * 1.5))
    assert rank_correlation([1, 2], [5, 5]) is None
    assert rank_correlation([], []) is None
    with pytest.raises(ValueError, match="same number"):
        rank_correlation([1, 2, 3], [1, 2])


def test_rank_correlation_is_that_of_scipy() -> None:
    scipy = pytest.importorskip("scipy.stats")
    one, other = [1.0, 2.0, 2.0, 5.0, 0.0, 2.0], [0.5, 0.1, 0.9, 0.9, 0.0, 0.9]

    assert rank_correlation(one, other) == pytest.approx(scipy.spearmanr(one, other).statistic)


def test_default_ks() -> None:
    assert default_ks(1) == (1,)
    assert default_ks(8) == (1, 2, 4, 8)
    assert default_ks(10) == (1, 2, 4, 8, 10)
