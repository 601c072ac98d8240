"""Turns that begin at once are spread over rounds of the loop, in their order, and none is lost."""

from __future__ import annotations

import asyncio

from quintain.rollouts.loop_share import TURNS, LoopShare


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


def test_each_round_begins_as_many_turns() -> None:
    """Each taker has one turn, in order."""
    order, of_round = asyncio.run(rounds_of(1000))

    assert order == list(range(1000))
    assert [n for n in of_round if n] == [TURNS] * (1000 // TURNS)


def test_cancelled_episodes_take_no_turn() -> None:
    """Those that wait behind a cancelled one go on."""
    gone = frozenset(range(20, 40))
    order, _ = asyncio.run(rounds_of(100, gone))

    assert order == [i for i in range(100) if i not in gone]
