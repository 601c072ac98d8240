"""Groups from their admission to their last episode."""

from __future__ import annotations

from typing import Any

from quintain import Task
from quintain.rollouts import RolloutRequest
from quintain_scale.schedules.running import RunningGroups

NOBODY: Any = None


def admitted(*indices: int) -> RunningGroups:
    """Groups of three episodes in batches of two groups."""
    running = RunningGroups(group_size=3, groups=2)
    for index in indices:
        task = Task(prompt=str(index))
        running.add(RolloutRequest(environment=NOBODY, task=task, group_size=3, index=index))
    return running


def test_groups_that_complete_later_ones_overtake() -> None:
    """A whole batch of them has to, and those admitted before alone are overtaken."""
    running = admitted(0, 1, 2, 3)
    running.remove(1, overtakes=True)
    assert not running.is_overtaken(0)

    running.remove(2, overtakes=True)
    assert running.is_overtaken(0)
    assert not running.is_overtaken(3)
    assert running.overtaken == 1


def test_a_group_that_overtakes_nothing_is_not_counted() -> None:
    running = admitted(0, 1, 2)
    running.remove(1, overtakes=False)
    running.remove(2, overtakes=False)
    assert running.overtaken == 0


def test_the_first_episode_says_when_a_group_began() -> None:
    running = admitted(0, 1)
    running.start(0, 4)
    running.start(0, 6)
    assert running.started(7) == {4: 1, 7: 1}


def test_an_abandoned_group_takes_no_place_until_its_episodes_end() -> None:
    running = admitted(0, 1)
    running.start(0, 1)
    running.start(1, 3)
    running.episode_ended(0)
    assert [request.index for request in running.abandon_older(2)] == [0]
    assert [request.index for request in running] == [1]
    assert running.episodes == 3
    assert running.abandoned_episodes == 2

    running.episode_ended(0)
    running.episode_ended(0)
    assert running.remove(0, overtakes=True) is None
    assert running.abandoned_episodes == 0


def test_a_group_that_only_waits_is_not_abandoned() -> None:
    running = admitted(0)
    assert running.abandon_older(9) == []
    assert len(running) == 1
