"""When scores are equal: one rule for advantages, group filters and metrics."""

from __future__ import annotations

import pytest

from quintain.console.metrics import group_metrics
from quintain.interfaces.algorithm import GroupStats
from quintain.learning.pieces.advantages import group_mean
from quintain.learning.pieces.group_filter import varied
from quintain.types.rollout import Group, Rollout, Score, Turn, are_equal
from quintain.types.task import Task

from ..learning.test_pieces import step

DIFFERENT = [
    [0.0, 1.0],
    [1e6, 1e6 + 0.5],
    [1e7, 1e7 + 1, 1e7 + 4],
    [-2.5e6, -2.5e6 + 1],
    [1e9, 1e9 + 100],
    [1.7e9, 1.7e9 + 60],
    [-3.7e11, -3.7e11 + 0.01],  # cents of a large sum
    [1e14, 1e14 + 1],
    [0.0, 1e-9],
    [3e-10, 5e-10],
    [1e300, 1.0001e300],
]
EQUAL = [
    [],
    [0.7],
    [1e7, 1e7],
    [0.1 + 0.2, 0.3],
    [0.1 + 0.2 - 0.3, 0.0],
    [sum([0.1] * 10), 1.0],
    [1e7 + 0.1 + 0.2, 1e7 + 0.3],
    [(1.7e9 / 3) * 3, 1.7e9],
    [-1e12 / 7 * 7, -1e12],
]


@pytest.mark.parametrize(
    ("scores", "expected"), [(s, False) for s in DIFFERENT] + [(s, True) for s in EQUAL]
)
def test_scores_are_equal_where_doubles_cannot_tell(scores: list[float], expected: bool) -> None:
    assert are_equal(scores) is expected


def test_a_wider_tolerance_is_absolute() -> None:
    assert are_equal([1e7, 1e7 + 4], tolerance=5.0)
    assert not are_equal([1e7, 1e7 + 6], tolerance=5.0)


@pytest.mark.parametrize("scores", [s for s in DIFFERENT + EQUAL if len(s) > 1])
def test_advantages_filters_and_metrics_agree(scores: list[float]) -> None:
    equal = are_equal(scores)
    rollouts = tuple(
        Rollout(task=Task(prompt="?"), turns=(Turn(text="x", tokens=1),), outcome=Score(value=s))
        for s in scores
    )
    group = Group(task=Task(prompt="?"), rollouts=rollouts, environment="a")
    stats = GroupStats(outcomes=tuple(scores), totals=tuple(scores), requested=len(scores))
    assert any(group_mean(step(scores))) is not equal
    assert bool(varied(stats)) is equal
    assert group_metrics([group], {})["zero_variance"] == float(equal)
