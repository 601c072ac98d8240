"""The limit of a replica: its bounds, when it may move, and where it settles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain.interfaces import Pressure
from quintain_scale.schedules.admission import BACK, CACHE_HIGH, TurnLimit

observations = st.lists(
    st.tuples(st.integers(0, 80), st.integers(0, 5), st.floats(0, 1), st.integers(0, 2)),
    max_size=60,
)


@given(most=st.integers(1, 72), seen=observations)
def test_the_limit_keeps_its_rules(most: int, seen: list[tuple[int, int, float, int]]) -> None:
    """Within its bounds; it grows only while it is used and nothing is pressed, falls only under
    pressure, by a quarter at most, and not twice for one cause.
    """
    admission = TurnLimit(most)
    preemptions = 0
    pressed_once = False
    for at, (turns, waiting, used, new) in enumerate(seen):
        before = admission.limit
        preemptions += new
        running = max(0, turns - waiting)
        admission.observe(
            Pressure(running=running, waiting=waiting, cache_used=used, preemptions=preemptions),
            turns,
        )
        full = (new > 0 and at > 0) or used > CACHE_HIGH
        assert 1 <= admission.limit <= most
        if admission.limit > before:
            assert not full
            assert not waiting
            assert turns >= before
            assert admission.limit <= before + 1 or not pressed_once
        if admission.limit < before:
            assert full or waiting
            assert turns <= before
            assert admission.limit >= max(1, int(BACK * before))
            assert full or admission.limit >= min(before, running)
        pressed_once |= full or waiting > 0


@given(capacity=st.integers(1, 64), most=st.integers(1, 64))
def test_it_settles_at_what_the_cache_holds(capacity: int, most: int) -> None:
    """An engine that preempts above its capacity, under a load without end."""
    admission, preemptions = TurnLimit(most), 0
    limits = []
    for _ in range(200):
        turns = admission.limit
        preemptions += max(0, turns - capacity)
        running = min(turns, capacity)
        admission.observe(Pressure(running=running, preemptions=preemptions), turns)
        limits.append(admission.limit)
    reached = min(capacity, most)
    assert max(limits[100:]) <= min(most, capacity + 1)
    assert min(limits[100:]) >= max(1, int(BACK * reached) - 1)


def test_turns_that_only_wait_cost_nothing() -> None:
    """An engine of fixed slots: the limit stays at what it runs."""
    admission = TurnLimit(64)
    for _ in range(20):
        turns = admission.limit
        admission.observe(Pressure(running=min(turns, 16), waiting=max(0, turns - 16)), turns)
    assert admission.limit in (16, 17)


def test_a_bound_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match="admission of at most 0 turns; expected at least 1"):
        TurnLimit(0)
