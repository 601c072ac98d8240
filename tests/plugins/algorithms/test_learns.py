"""Every algorithm of `quintain-algorithms` teaches a tiny model, in a second or two. `make test`
runs one with weights of whole sequences; what the others compute is compared with formulas there.
"""

from __future__ import annotations

import pytest

import quintain_algorithms

from ...core.learning.learns import SEEDS, rises
from ...lanes import mostly_slow

pytestmark = pytest.mark.usefixtures("no_curves")
NAMES = [getattr(quintain_algorithms, name).name for name in quintain_algorithms.__all__]


@pytest.mark.more
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", mostly_slow(NAMES, ["gspo"]))
def test_success_rises(name: str, seed: int) -> None:
    """By a tenth at least, with the algorithm's own defaults."""
    before, after = rises(name, seed)
    assert after >= before + 0.1, (before, after)


@pytest.mark.more
def test_reinforce_with_the_greedy_baseline() -> None:
    """`greedy` plays one more episode per group, in the run itself."""
    before, after = rises("reinforce", 1, algorithm__args={"advantage": "greedy"})
    assert after >= before + 0.1, (before, after)
