"""How long a client waits before it tries again."""

from __future__ import annotations

from random import Random

import pytest

from quintain_engines.openai.retries import LONGEST_WAIT, wait_before_retry


@pytest.mark.parametrize(("tries", "middle"), [(0, 0.5), (1, 1.0), (4, 8.0), (9, 60.0)])
def test_waits_double_within_their_jitter(tries: int, middle: float) -> None:
    """From half to one and a half of the doubled wait, and never more than the longest."""
    waits = [wait_before_retry(0.5, tries, Random(seed)) for seed in range(50)]

    assert all(0.5 * middle <= wait <= min(1.5 * middle, LONGEST_WAIT) for wait in waits)
    assert len(set(waits)) > 20


def test_what_the_server_asks_for_counts_up_to_the_longest_wait() -> None:
    assert wait_before_retry(0.5, 0, Random(0), asked=7.0) == 7.0
    assert wait_before_retry(0.5, 0, Random(0), asked=900.0) == LONGEST_WAIT
    assert wait_before_retry(0.5, 30, Random(0), longest=5.0) <= 7.5
