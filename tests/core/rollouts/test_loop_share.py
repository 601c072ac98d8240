"""Turns that begin at once are spread over rounds of the loop, in their order, and none is lost."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from quintain.rollouts import loop_share
from quintain.rollouts.loop_share import MOST, SLICE, LoopShare


async def rounds_of(
    takers: int, cancelled: frozenset[int] = frozenset()
) -> tuple[list[int], list[int]]:
    """The takers in the order of their turns, and how many began in each round of the loop."""
    share, order, of_round = LoopShare(), list[int](), list[int]()

    async def one(number: int) -> None:
        await share.take()
        order.append(number)

    tasks = [asyncio.create_task(one(i)) for i in range(takers)]
    while not all(task.done() for task in tasks):
        before = len(order)
        await asyncio.sleep(0)
        of_round.append(len(order) - before)
        for number in cancelled:
            tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return order, of_round


def test_rounds_grow_while_they_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each taker has one turn, in order; a round that takes no time is followed by a larger one."""
    monkeypatch.setattr(loop_share, "perf_counter", lambda: 0.0)
    order, of_round = asyncio.run(rounds_of(1000))

    assert order == list(range(1000))
    began = [n for n in of_round if n]
    assert began[:3] == [MOST // 4, MOST // 4 + 1, MOST // 4 + 2]
    assert max(began) <= MOST


def test_rounds_shrink_to_one_turn_where_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that take longer than the slice begin one by one."""
    clock = count(step=2 * SLICE)
    monkeypatch.setattr(loop_share, "perf_counter", lambda: next(clock))
    order, of_round = asyncio.run(rounds_of(100))

    assert order == list(range(100))
    assert [n for n in of_round if n][4:20] == [1] * 16


def test_cancelled_episodes_take_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait behind a cancelled one go on."""
    monkeypatch.setattr(loop_share, "perf_counter", lambda: 0.0)
    gone = frozenset(range(20, 40))
    order, _ = asyncio.run(rounds_of(100, gone))

    assert order == [i for i in range(100) if i not in gone]
