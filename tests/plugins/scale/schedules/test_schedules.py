"""The presets, the order by expected durations, and the plan that empties replicas."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Rollout, Task
from quintain.errors import BindingError
from quintain.registry.binding import bind
from quintain.registry.lookup import current
from quintain.rollouts import RolloutRequest
from quintain_scale.schedules import LongestFirst, repack

from ....integration.waiting import TwoTurns

PRESETS = {
    "sync": (0, False, True),
    "one_step_off": (1, False, True),
    "areal": (4, True, True),
    "pipeline": (8, True, False),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_three_settings_that_arguments_change(name: str) -> None:
    kind: Any = current().load("schedule", name)
    schedule = bind(kind, {})

    assert PRESETS[name] == (
        schedule.max_staleness,
        schedule.in_flight_updates,
        schedule.recompute_kv,
    )
    assert (name != "sync") == schedule.overlaps
    assert bind(kind, {"max_staleness": 2}).max_staleness == 2
    assert schedule.episode_order() is None
    assert schedule.stale == "wait"  # a default leaves no slow group out
    with pytest.raises(BindingError, match="max_lag"):
        bind(kind, {"max_lag": 2})


def test_the_order_is_chosen_by_name() -> None:
    kind: Any = current().load("schedule", "areal")

    assert isinstance(bind(kind, {"order": "longest_first"}).episode_order(), LongestFirst)
    with pytest.raises(BindingError, match="order"):
        bind(kind, {"order": "shortest"})


def waiting(names: Sequence[str]) -> list[tuple[RolloutRequest, int, int]]:
    environment = TwoTurns()
    requests = [
        RolloutRequest(
            environment=environment, task=Task(prompt=name), group_size=1, name="letters", index=i
        )
        for i, name in enumerate(names)
    ]
    return [(request, 0, i) for i, request in enumerate(requests)]


def seen(name: str, seconds: float, environment: str = "letters") -> Rollout:
    return Rollout(task=Task(prompt=name), environment=environment, seconds=seconds)


def test_the_longest_episode_starts_first() -> None:
    """By the task's own durations, else by those of the environment; unknown environments come
    first, ties in order.
    """
    order, names = LongestFirst(), ["quick", "slow", "new"]
    assert order.choose(waiting(names)) == 0
    order.observe(seen("quick", 1.0))
    order.observe(seen("slow", 9.0))
    assert order.choose(waiting(names)) == 1
    assert order.choose(waiting(["quick", "new"])) == 1
    other = waiting(["slow", "elsewhere"])
    other[1] = (replace(other[1][0], name="other"), 0, 1)
    assert order.choose(other) == 1
    for _ in range(20):
        order.observe(seen("quick", 30.0))
    assert order.choose(waiting(["quick", "slow"])) == 0


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_with_known_durations_the_makespan_is_within_a_third_of_the_best(
    seed: int, slots: int
) -> None:
    """Graham's bound for longest processing time first: at most 4/3 - 1/(3 m) of the optimum, hence
    of its lower bound when that is the work per slot or the longest two that share one.
    """
    draw = Random(seed)
    names = {f"task {i}": draw.expovariate(1.0) for i in range(12)}
    order = LongestFirst()
    for name, seconds in names.items():
        order.observe(seen(name, seconds))
    left, ends = waiting(list(names)), [0.0] * slots
    while left:
        request = left.pop(order.choose(left))[0]
        heapq.heappush(ends, heapq.heappop(ends) + names[str(request.task.prompt)])
    longest = sorted(names.values(), reverse=True)
    least = max(sum(longest) / slots, longest[0], longest[slots - 1] + longest[slots])

    assert max(ends) <= (4 / 3 - 1 / (3 * slots)) * least + longest[-1] + 1e-9


@given(st.lists(st.integers(0, 8), max_size=7))
def test_repacking_keeps_every_sequence_and_empties_replicas(loads: list[int]) -> None:
    moves = repack(loads, 8)
    after = list(loads)
    for source, target, count in moves:
        assert count > 0
        after[source] -= count
        after[target] += count

    assert sum(loads) == sum(after)
    assert all(0 <= load <= 8 for load in after)
    assert all(after[source] == 0 for source, _, _ in moves)
    # nothing moves twice
    assert not {source for source, _, _ in moves} & {target for _, target, _ in moves}
    assert sum(map(bool, after)) == -(-sum(loads) // 8)


def test_the_tail_of_many_replicas_fits_on_few() -> None:
    assert repack([1, 1, 2, 3], 8) == [(0, 3, 1), (1, 3, 1), (2, 3, 2)]
    assert repack([8, 8, 0], 8) == []
    assert repack([7, 7], 8) == []
    with pytest.raises(ValueError, match="0 to 4"):
        repack([5], 4)
