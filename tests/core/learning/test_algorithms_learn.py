"""Every algorithm of the table teaches a tiny model, in a second or two."""

from __future__ import annotations

import pytest

from quintain.learning import ALGORITHMS

from .learns import SEEDS, rises

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_success_rises(name: str, seed: int) -> None:
    """By a tenth at least, with the algorithm's own defaults."""
    before, after = rises(name, seed)
    assert after >= before + 0.1, (before, after)


@pytest.mark.parametrize("baseline", ["raw", "ema", "group_mean"])
def test_reinforce_with_its_other_baselines(baseline: str) -> None:
    before, after = rises("reinforce", 1, algorithm__args={"advantage": baseline})
    assert after >= before + 0.1, (before, after)
