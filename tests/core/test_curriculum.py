"""The curriculum: fair, reproducible, resumable, and clear when there is nothing to pick."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain import curriculum
from quintain.curriculum import Curriculum
from quintain.environment import Environment
from quintain.errors import NoTasksError, PluginError, RecipeError, RunError
from quintain.reward import reward
from quintain.rollout import Rollout
from quintain.task import Task


@reward
def right(rollout: Rollout[Task, None]) -> float:
    return 1.0


class Finite(Environment[Task, None]):
    reward = right
    size: int = 5
    word: str = "f"

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{self.word}{i}") for i in range(self.size))


class Endless(Environment[Task, None]):
    reward = right

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"e{i}") for i in itertools.count())


class Repeating(Environment[Task, None]):
    reward = right

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"r{i % 3}") for i in itertools.count())


class Broken(Environment[Task, None]):
    reward = right
    fault: str = "raise"

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(prompt="one")
        if self.fault == "raise":
            raise OSError("no such file")
        if self.fault == "usage":
            raise RecipeError("path is wrong")
        yield "two"  # type: ignore[misc]


@pytest.fixture(autouse=True, scope="module")
def small_window() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curriculum, "WINDOW", 64)
        yield


def prompts(c: Curriculum, count: int) -> list[str]:
    return [str(p.task.prompt) for p in c.pick(count)]


def test_every_pass_shows_all_tasks_once_in_another_order() -> None:
    c = Curriculum([Finite(size=20)], seed=1)
    first, second = prompts(c, 20), prompts(c, 20)
    assert sorted(first) == sorted(second) == sorted(f"f{i}" for i in range(20))
    assert first != second
    assert first != [f"f{i}" for i in range(20)]
    assert prompts(Curriculum([Finite(size=20)], seed=1), 20) == first
    assert prompts(Curriculum([Finite(size=20)], seed=2), 20) != first


def test_a_split_longer_than_the_window_is_still_seen_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "WINDOW", 8)
    c = Curriculum([Finite(size=50)])
    for _ in range(2):
        assert sorted(prompts(c, 50)) == sorted(f"f{i}" for i in range(50))


def test_endless_splits_never_repeat_and_are_mixed() -> None:
    seen = prompts(Curriculum([Endless()]), 500)
    assert len(set(seen)) == 500
    assert seen != [f"e{i}" for i in range(500)]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.integers(0, 2**62), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_the_mix_follows_the_weights_closely(weights: list[float], seed: int, count: int) -> None:
    c = Curriculum([Finite(size=3, word=w) for w in "abcd"[: len(weights)]], weights=weights, seed=seed)
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


@given(st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_going_on_from_a_state_picks_what_would_have_come(before: int, after: int) -> None:
    def make() -> Curriculum:
        return Curriculum([Finite(size=7), Endless(), Repeating()], weights=[1, 2, 0.5], seed=3)

    original, resumed = make(), make()
    original.pick(before)
    state = json.loads(json.dumps(original.state()))
    resumed.restore(state)
    assert resumed.state() == state
    assert resumed.pick(after) == original.pick(after)
    assert resumed.state() == original.state()


def test_the_last_pick_can_be_given_back() -> None:
    c, other = Curriculum([Finite(size=7)], seed=3), Curriculum([Finite(size=7)], seed=3)
    c.pick(4)
    before = c.state()
    given_back = c.pick(5)
    c.restore(before)
    assert c.state()["picked"] == 4
    assert c.pick(3) == given_back[:3]
    assert c.pick(4)[:2] == given_back[3:]
    other.pick(11)
    assert c.state() == other.state()
    assert c.pick(3) == other.pick(3)


def test_a_state_saved_after_giving_back_resumes() -> None:
    c, other = Curriculum([Finite(size=7)], seed=3), Curriculum([Finite(size=7)], seed=3)
    c.pick(4)
    before = c.state()
    c.pick(5)
    c.restore(before)
    other.restore(c.state())
    assert other.pick(6) == c.pick(6)


def test_changed_tasks_are_noticed() -> None:
    c = Curriculum([Finite(size=7)], names=["mine"])
    c.pick(4)
    with pytest.raises(RunError, match="mine do not yield the tasks of the checkpoint"):
        Curriculum([Finite(size=8)], names=["mine"]).restore(c.state())


def test_nothing_to_pick() -> None:
    with pytest.raises(NoTasksError, match=r"'mine' has no tasks in its 'train' split.*quintain info mine"):
        Curriculum([Finite(size=0)], names=["mine"]).pick(1)


@pytest.mark.parametrize(
    "fault, error, words",
    [
        ("raise", PluginError, "OSError: no such file"),
        ("usage", RecipeError, "path"),
        ("type", PluginError, "yields 'two'"),
    ],
)
def test_environments_that_break(fault: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Curriculum([Broken(fault=fault)], names=["mine"]).pick(1)
