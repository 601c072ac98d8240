"""The curriculum: fair, reproducible, resumable, and clear when there is nothing to pick."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Task
from quintain.errors import EnvironmentFault, NoTasksError, RecipeError, RunError
from quintain.tasks import stream
from quintain.tasks import visits as visits_module
from quintain.tasks.mixture import Mixture
from quintain.tasks.visits import Visits
from quintain.types import derived_seed

from ...lanes import examples
from .splits import Broken, Endless, Finite, Repeating, prompts


@pytest.fixture(autouse=True, scope="module")
def small_window() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WINDOW", 64)
        yield


def test_every_pass_shows_all_tasks_once_in_another_order() -> None:
    c = Mixture([Finite(size=20)], seed=1)
    first, second = prompts(c, 20), prompts(c, 20)
    assert sorted(first) == sorted(second) == sorted(f"f{i}" for i in range(20))
    assert first != second
    assert first != [f"f{i}" for i in range(20)]
    assert prompts(Mixture([Finite(size=20)], seed=1), 20) == first
    assert prompts(Mixture([Finite(size=20)], seed=2), 20) != first


def test_a_split_longer_than_the_window_is_still_seen_once_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "WINDOW", 8)
    c = Mixture([Finite(size=50)])
    for _ in range(2):
        assert sorted(prompts(c, 50)) == sorted(f"f{i}" for i in range(50))


def test_endless_splits_never_repeat_and_are_mixed() -> None:
    seen = prompts(Mixture([Endless()]), 500)
    assert len(set(seen)) == 500
    assert seen != [f"e{i}" for i in range(500)]


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.integers(0, 2**62), st.integers(1, 300)
)
@examples(30)
def test_the_mix_follows_the_weights_closely(weights: list[float], seed: int, count: int) -> None:
    c = Mixture(
        [Finite(size=3, word=w) for w in "abcd"[: len(weights)]], weights=weights, seed=seed
    )
    counts = Counter(p.environment for p in c.pick(count))
    for i, weight in enumerate(weights):
        assert abs(counts[i] - count * weight / sum(weights)) <= 4


def test_visits_count_how_often_a_task_came_up_before() -> None:
    picks = Mixture([Repeating()]).pick(9)
    by_task: dict[str, list[int]] = {}
    for p in picks:
        by_task.setdefault(p.task.id, []).append(p.visit)
    assert sorted(v for visits in by_task.values() for v in visits) == sorted(
        v for visits in by_task.values() for v in range(len(visits))
    )
    assert len({(p.task.id, p.visit) for p in picks}) == 9
    assert [p.index for p in picks] == list(range(9))
    again = Mixture([Finite(size=2)]).pick(4)
    assert Counter(p.visit for p in again) == {0: 2, 1: 2}


def test_changed_tasks_are_noticed() -> None:
    c = Mixture([Finite(size=7)], names=["mine"])
    c.pick(4)
    with pytest.raises(RunError, match="mine no longer yield the tasks of the checkpoint"):
        Mixture([Finite(size=8)], names=["mine"]).restore(c.state())


def test_nothing_to_pick() -> None:
    with pytest.raises(
        NoTasksError, match=r"'mine' has no tasks in its 'train' split.*quintain info mine"
    ):
        Mixture([Finite(size=0)], names=["mine"]).pick(1)


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
        Mixture([Broken(fault=fault)], names=["mine"]).pick(1)


class Listed(Finite):
    """Its split is a sequence, and says which of its tasks are asked for."""

    def tasks(self, split: str) -> Any:
        return Asked(super().tasks(split), self.asked)

    asked: ClassVar[list[int]] = []


class Asked(Sequence[Task]):
    """A sequence that notes the numbers that it is asked for."""

    def __init__(self, tasks: Iterable[Task], asked: list[int]) -> None:
        self._tasks, self._asked = [*tasks], asked

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, at: Any) -> Any:
        self._asked.append(at)
        return self._tasks[at]


@given(st.integers(0, 90), st.integers(0, 40), st.sampled_from([1, 4, 64]))
@examples(40)
def test_a_restored_state_picks_what_would_have_come(before: int, after: int, window: int) -> None:
    """Within a pass, at its end, in a later one; of sequences and of generators."""

    def make() -> Mixture:
        splits = [Finite(size=7), Endless(), Repeating(), Listed(size=30, word="l")]
        return Mixture(splits, weights=[1, 2, 0.5, 2], seed=3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WINDOW", window)
        original, resumed = make(), make()
        original.pick(before)
        resumed.restore(json.loads(json.dumps(original.state())))
        assert original.state() == resumed.state()
        assert original.pick(after) == resumed.pick(after)


def test_a_resume_reads_the_buffer_of_a_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the tasks that were drawn before."""
    monkeypatch.setattr(stream, "WINDOW", 8)
    original, resumed = (Mixture([Listed(size=1000)]) for _ in range(2))
    original.pick(500)
    Listed.asked.clear()
    resumed.restore(original.state())

    assert len(Listed.asked) == 8
    assert resumed.pick(600) == original.pick(600)


def test_the_order_is_that_of_earlier_versions() -> None:
    """The picks of a seed never change: a shuffle in a buffer, written down once more."""

    def order(tasks: list[str], seed: int) -> Iterator[str]:
        for number in count():
            rng = Random(derived_seed(seed, number))
            source = iter(tasks)
            window = list(islice(source, 64))
            for task in source:
                at = rng.randrange(len(window))
                yield window[at]
                window[at] = task
            rng.shuffle(window)
            yield from window

    for size in (5, 64, 150):
        wanted = order([f"f{i}" for i in range(size)], derived_seed(9, "curriculum", 0))
        got = prompts(Mixture([Finite(size=size)], seed=9), 400)
        assert got == [*islice(wanted, 400)]


def test_a_split_that_lost_the_tasks_of_the_buffer_is_noticed() -> None:
    """Also a sequence that has become too short."""
    state = Mixture([Listed(size=100)], names=["mine"])
    state.pick(30)
    for size in (93, 20):
        with pytest.raises(RunError, match="mine no longer yield the tasks of the checkpoint"):
            Mixture([Listed(size=size)], names=["mine"]).restore(state.state())


IDS = st.text("0123456789abcdef", min_size=16, max_size=16) | st.text(max_size=3)


@given(st.lists(st.tuples(IDS | st.sampled_from(["0" * 16, "00" * 7 + "01"]), st.integers(1, 3))))
@examples(100)
def test_the_table_of_visits_counts_as_a_counter(visits: list[tuple[str, int]]) -> None:
    """In one shard, too, where the end of a key and the beginning of the next look like a third."""
    for shards in (1, 4096):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(visits_module, "_SHARDS", shards)
            counter, table = Counter[str](), Visits()
            for task, times in visits:
                assert table.add(task, times) == counter[task]
                counter[task] += times
            again = Visits.of(json.loads(json.dumps(table.state())))
            assert again.state() == table.state()
            for task, times in counter.items():
                assert again.add(task) == Visits.of(counter).add(task) == times
