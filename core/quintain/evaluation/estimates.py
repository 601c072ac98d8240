"""Estimates from samples of a policy: pass@k, cons@k, and their confidence intervals.

The unit of evidence is the *task*: samples of one task resemble each other, so intervals are
clustered by task. One method serves every proportion here (see `proportion`): the Wilson score
interval at the effective sample size. It is a formula, so it needs no seed; it stays inside [0, 1];
and it does not collapse to zero width where every task was solved, as a normal interval or a
bootstrap does.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, correlation

Answer = tuple[Hashable | None, float]
"""What a sample answered (``None``: it gave no answer) and how right that was, 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over tasks and its confidence interval.

    ``tasks`` and ``samples`` are what it rests on; ``effective`` is the number of independent
    samples they are worth.
    """

    value: float
    low: float
    high: float
    tasks: int
    samples: int
    effective: float
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Estimate without bias the chance that at least one of *k* samples is right.

    ``1 - C(n - c, k) / C(n, k)`` for n samples of which c are right (Chen et al. 2021,
    arXiv:2107.03374, equation 1).

    Raises:
        ValueError: unless ``1 <= k <= samples`` and ``0 <= right <= samples``.
    """
    _check_k(samples, k)
    if not 0 <= right <= samples:
        raise ValueError(f"pass@k: {right} right of {samples} samples")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def cons_at_k(answers: Sequence[Answer], k: int) -> float:
    """Return the expected correctness of the plurality answer of *k* samples (cons@k, maj@k; Wang
    et al. 2022, arXiv:2203.11171).

    Exact and unbiased: the mean over all subsets of k samples, none drawn. Equal votes share the
    win evenly. A sample without an answer casts no vote; where nobody votes the result is 0. An
    answer whose samples were judged differently counts by its mean. Cost grows with ``n k^2 log k``
    per answer that is right.

    Raises:
        ValueError: unless ``1 <= k <= len(votes)``.
    """
    _check_k(len(answers), k)
    judged: defaultdict[Hashable | None, list[float]] = defaultdict(list)
    for answer, value in answers:
        judged[answer].append(float(value))
    silent = len(judged.pop(None, ()))
    sizes = Counter({a: len(v) for a, v in judged.items()})
    right = {a: math.fsum(v) / len(v) for a, v in judged.items()}
    ways = sum(
        value * _wins(sizes, silent, answer, k) for answer, value in right.items() if value > 0
    )
    return min(1.0, ways / math.comb(len(answers), k))


def _wins(sizes: Counter[Hashable], silent: int, answer: Hashable, k: int) -> float:
    """Count the k-subsets that *answer* wins, a tie with t others counting ``1 / (1 + t)``."""
    others = [size for other, size in sizes.items() if other != answer]
    total = 0.0
    for j in range(1, min(sizes[answer], k) + 1):
        ties = _choices(others, silent, k - j, j)
        total += math.comb(sizes[answer], j) * sum(n / (1 + t) for t, n in ties.items())
    return total


def _choices(others: Sequence[int], silent: int, size: int, votes: int) -> dict[int, int]:
    """Count the ways to fill *size* places with no other answer over *votes* votes, by how many get
    exactly *votes*.
    """
    table = {(v, 0): math.comb(silent, v) for v in range(min(silent, size) + 1)}
    for count in others:
        grown: defaultdict[tuple[int, int], int] = defaultdict(int)
        for (used, ties), ways in table.items():
            for v in range(min(count, votes, size - used) + 1):
                grown[used + v, ties + (v == votes)] += ways * math.comb(count, v)
        table = grown
    return {ties: ways for (used, ties), ways in table.items() if used == size}


def wilson(share: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a *share* seen in *size* (any number of) independent
    trials (Wilson 1927).
    """
    if size <= 0:
        return 0.0, 1.0
    z = _quantile(confidence)
    scale = 1 + z * z / size
    middle = (share + z * z / (2 * size)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    # Where the share is exactly 0 or 1 so is one end; rounding must not move it.
    return (0.0 if share <= 0 else max(0.0, middle - half)), (
        1.0 if share >= 1 else min(1.0, middle + half)
    )


def proportion(
    values: Sequence[float], samples: Sequence[int], *, k: int = 1, confidence: float = 0.95
) -> Estimate:
    """Return the mean of one value in [0, 1] per task, each task with equal weight, and an interval
    clustered by task.

    Wilson's interval at the effective sample size ``p (1 - p) / (s^2 / T)``, s^2 the variance
    between the T tasks (ddof 1): the form that Franco et al. 2019 (PMC6690503) recommend for
    proportions in clustered samples. The size is kept between T (samples of one task teach nothing
    more; taken where p is 0 or 1) and the number of disjoint sets of *k* samples (they are
    independent). With one sample per task it is Wilson's interval itself. It covers the tasks one
    could have drawn, not only those drawn.

    Args:
        values: per task, such as the share of right samples or its pass@k.
        samples: per task, how many samples its value rests on.
        k: how many samples one trial takes (the k of pass@k).

    Raises:
        ValueError: no tasks, or values outside [0, 1].
    """
    tasks = _check_values(values, samples)
    if min(values) < 0 or max(values) > 1:
        raise ValueError(
            f"proportion: values between {min(values)} and {max(values)}; expected 0 to 1"
        )
    p = math.fsum(values) / tasks
    upper_bound = math.fsum(max(1.0, n / k) for n in samples)
    variance = _variance(values, p) / tasks
    spread = p * (1 - p)
    effective = (
        float(tasks)
        if spread <= 1e-12 or tasks == 1
        else upper_bound
        if variance <= 0
        else min(upper_bound, max(tasks, spread / variance))
    )
    low, high = wilson(p, effective, confidence)
    return Estimate(
        value=p,
        low=low,
        high=high,
        tasks=tasks,
        samples=sum(samples),
        effective=effective,
        confidence=confidence,
    )


def mean(values: Sequence[float], samples: Sequence[int], *, confidence: float = 0.95) -> Estimate:
    """Return the mean of one value of any size per task, and Student's t interval between tasks.

    Miller 2024 (arXiv:2411.00640) takes the normal one, which is too narrow for few tasks. Where
    the values do not differ, t would have width 0: then it is Wilson's interval of their place
    between 0 and 1, or between them and the nearer of these if they are outside. Few values of a
    very skewed distribution are covered less often than *confidence* says.

    Raises:
        ValueError: no tasks.
    """
    tasks = _check_values(values, samples)
    middle = math.fsum(values) / tasks
    variance = _variance(values, middle)
    if variance > 0:
        half = student_quantile(tasks - 1, confidence) * math.sqrt(variance / tasks)
        low, high = middle - half, middle + half
    else:
        least, most = min(0.0, middle), max(1.0, middle)
        low, high = wilson((middle - least) / (most - least), tasks, confidence)
        low, high = least + low * (most - least), least + high * (most - least)
    return Estimate(
        value=middle,
        low=low,
        high=high,
        tasks=tasks,
        samples=sum(samples),
        effective=float(tasks),
        confidence=confidence,
    )


def student_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the number that the size of Student's t of *degrees* of freedom, at least 1, stays
    below with probability *confidence*.
    """
    normal = _quantile(confidence)
    if degrees > 1000:
        return normal  # nearer than a thousandth
    # Abramowitz and Stegun 26.7.3 and 26.7.4 give the probability as a sum for the angle of
    # t / sqrt(degrees), which grows with the angle.
    low, high = math.atan(normal / math.sqrt(degrees)), math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if _student_probability(degrees, angle) < confidence:
            low = angle
        else:
            high = angle
    return math.sqrt(degrees) * math.tan(high)


def _student_probability(degrees: int, angle: float) -> float:
    """Return the probability that t is at most sqrt(*degrees*) tan(*angle*) in size."""
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def default_ks(samples: int) -> tuple[int, ...]:
    """Return which k to show for that many samples per task: the powers of two below, and the
    number itself.
    """
    return (*(2**i for i in range(samples.bit_length()) if 2**i < samples), samples)


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; ``None`` where one side does not
    vary.
    """
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    return correlation(_ranks(xs), _ranks(ys))


def _ranks(values: Sequence[float]) -> list[float]:
    counts = Counter(values)
    smaller, ranks = 0, dict[float, float]()
    for value in sorted(counts):
        ranks[value] = smaller + (counts[value] + 1) / 2
        smaller += counts[value]
    return [ranks[value] for value in values]


def _check_values(values: Sequence[float], samples: Sequence[int]) -> int:
    if not values or len(values) != len(samples):
        raise ValueError(
            f"an estimate needs at least one task, got {len(values)} values and {len(samples)} "
            f"counts"
        )
    return len(values)


def _check_k(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k} with {samples} samples; expected 1 to {samples}")


def _variance(values: Iterable[float], middle: float) -> float:
    squares = [(x - middle) ** 2 for x in values]
    return math.fsum(squares) / (len(squares) - 1) if len(squares) > 1 else 0.0


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; expected between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf(0.5 + confidence / 2)
