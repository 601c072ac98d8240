"""Every algorithm of the table teaches a tiny model, in a second or two. `make test` runs one; what
the others compute is compared with formulas there.
"""

from __future__ import annotations

import pytest

from quintain.learning import ALGORITHMS

from ...lanes import mostly_slow
from .learns import SEEDS, rises

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", mostly_slow(ALGORITHMS, ["grpo"]))
def test_success_rises(name: str, seed: int) -> None:
    """By a tenth at least, with the algorithm's own defaults."""
    before, after = rises(name, seed)
    assert after >= before + 0.1, (before, after)


@pytest.mark.more
@pytest.mark.parametrize("baseline", mostly_slow(["raw", "ema", "group_mean"], ["ema"]))
def test_reinforce_with_its_other_baselines(baseline: str) -> None:
    before, after = rises("reinforce", 1, algorithm__args={"advantage": baseline})
    assert after >= before + 0.1, (before, after)
