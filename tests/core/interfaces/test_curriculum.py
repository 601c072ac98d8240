"""The curriculum: fair, reproducible, resumable, and clear when there is nothing to pick."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.errors import EnvironmentFault, NoTasksError, RecipeError, RunError
from quintain.interfaces import curriculum as curriculum
from quintain.interfaces.curriculum import Curriculum

from .splits import Broken, Endless, Finite, Repeating, prompts


@pytest.fixture(autouse=True, scope="module")
def small_window() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curriculum, "WINDOW", 64)
        yield


def test_every_pass_shows_all_tasks_once_in_another_order() -> None:
    c = Curriculum([Finite(size=20)], seed=1)
    first, second = prompts(c, 20), prompts(c, 20)
    assert sorted(first) == sorted(second) == sorted(f"f{i}" for i in range(20))
    assert first != second
    assert first != [f"f{i}" for i in range(20)]
    assert prompts(Curriculum([Finite(size=20)], seed=1), 20) == first
    assert prompts(Curriculum([Finite(size=20)], seed=2), 20) != first


def test_a_split_longer_than_the_window_is_still_seen_once_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curriculum, "WINDOW", 8)
    c = Curriculum([Finite(size=50)])
    for _ in range(2):
        assert sorted(prompts(c, 50)) == sorted(f"f{i}" for i in range(50))


def test_endless_splits_never_repeat_and_are_mixed() -> None:
    seen = prompts(Curriculum([Endless()]), 500)
    assert len(set(seen)) == 500
    assert seen != [f"e{i}" for i in range(500)]


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.integers(0, 2**62), st.integers(1, 300)
)
@settings(max_examples=30, deadline=None)
def test_the_mix_follows_the_weights_closely(weights: list[float], seed: int, count: int) -> None:
    c = Curriculum(
        [Finite(size=3, word=w) for w in "abcd"[: len(weights)]], weights=weights, seed=seed
    )
    counts = Counter(p.environment for p in c.pick(count))
    for i, weight in enumerate(weights):
        assert abs(counts[i] - count * weight / sum(weights)) <= 4


def test_visits_count_how_often_a_task_came_up_before() -> None:
    picks = Curriculum([Repeating()]).pick(9)
    by_task: dict[str, list[int]] = {}
    for p in picks:
        by_task.setdefault(p.task.id, []).append(p.visit)
    assert sorted(v for visits in by_task.values() for v in visits) == sorted(
        v for visits in by_task.values() for v in range(len(visits))
    )
    assert len({(p.task.id, p.visit) for p in picks}) == 9
    assert [p.index for p in picks] == list(range(9))
    again = Curriculum([Finite(size=2)]).pick(4)
    assert Counter(p.visit for p in again) == {0: 2, 1: 2}


def test_changed_tasks_are_noticed() -> None:
    c = Curriculum([Finite(size=7)], names=["mine"])
    c.pick(4)
    with pytest.raises(RunError, match="mine no longer yield the tasks of the checkpoint"):
        Curriculum([Finite(size=8)], names=["mine"]).restore(c.state())


def test_nothing_to_pick() -> None:
    with pytest.raises(
        NoTasksError, match=r"'mine' has no tasks in its 'train' split.*quintain info mine"
    ):
        Curriculum([Finite(size=0)], names=["mine"]).pick(1)


@pytest.mark.parametrize(
    "fault, error, words",
    [
        ("raise", EnvironmentFault, "OSError: no such file"),
        ("usage", RecipeError, "path"),
        ("type", EnvironmentFault, "yields a str as a task: 'two'"),
    ],
)
def test_environments_that_break(fault: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Curriculum([Broken(fault=fault)], names=["mine"]).pick(1)


@given(st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_a_restored_state_picks_what_would_have_come(before: int, after: int) -> None:
    def make() -> Curriculum:
        return Curriculum([Finite(size=7), Endless(), Repeating()], weights=[1, 2, 0.5], seed=3)

    original, resumed = make(), make()
    original.pick(before)
    resumed.restore(json.loads(json.dumps(original.state())))
    assert resumed.state() == original.state()
    assert resumed.pick(after) == original.pick(after)
