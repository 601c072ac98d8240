"""Which of several replicas a turn goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from quintain import InfrastructureError
from quintain_scale.schedules.routing import Router

SLOTS = 4
PROMPT = [1, 2, 3, 4]


def chosen(
    router: Router, held: dict[int, int], loads: Sequence[int], blocks: Sequence[int] | None
) -> int:
    """The replica of a turn of *blocks*, where each replica of *held* has so many of the first
    blocks of `PROMPT` and each one has as many other turns as *loads* say.
    """
    for replica, count in held.items():
        router.prefixes.add(PROMPT[:count], replica)
    router.loads[:] = loads

    async def go() -> int:
        async with router.turn(blocks) as turn:
            return turn.replica

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("held", "loads", "wanted"),
    [
        ({}, [1, 0, 0], 1),  # the least loaded, the first of equals
        ({2: 4}, [0, 0, 1], 2),  # the one that has the prefix
        ({1: 3, 2: 4}, [0, 0, 1], 2),  # the longest one
        ({1: 4, 2: 4}, [0, 2, 1], 2),  # of equal prefixes, the less loaded
        ({2: 2}, [0, 0, 1], 2),  # half of the prompt is enough
        ({2: 1}, [0, 0, 1], 0),  # less is not
        ({2: 4}, [0, 0, 2], 2),  # busier by half of its slots
        ({2: 4}, [0, 0, 3], 0),  # busier than that
        ({2: 4}, [3, 3, 4], 0),  # it has no slot, and others have
        ({2: 4}, [4, 4, 5], 2),  # none has a slot
    ],
)
def test_a_turn_goes_to_its_prefix_unless_that_is_busy(
    held: dict[int, int], loads: list[int], wanted: int
) -> None:
    assert chosen(Router(3, SLOTS, 0, moves=False), held, loads, PROMPT) == wanted


def test_scores_go_to_the_least_loaded() -> None:
    assert chosen(Router(3, SLOTS, 0, moves=False), {2: 4}, [1, 0, 0], None) == 1


def test_a_prefix_on_a_replica_that_failed_or_is_late_is_passed_over() -> None:
    late = Router(3, SLOTS, 0, moves=False)
    late.open(2, late=True)
    failed = Router(3, SLOTS, 0, moves=False)

    async def fail() -> int:
        failed.prefixes.add(PROMPT, 2)
        async with failed.turn(PROMPT) as turn:
            assert turn.replica == 2
            await failed.retry(turn, InfrastructureError("no answer"))
            return turn.replica

    assert chosen(late, {2: 4}, [0, 0, 0], PROMPT) == 0
    assert asyncio.run(fail()) == 0
    assert chosen(failed, {2: 4}, [1, 1, 0], PROMPT) == 0


def test_waiting_turns_are_seated_in_their_order() -> None:
    """Those that may not have the replica that has room do not hold others, and keep their place."""
    router = Router(2, SLOTS, 0, moves=False)
    for replica in range(2):
        router.limit(replica, 1)
    seated: list[str] = []

    async def wait(name: str, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(router.turn(None))
        seated.append(name)

    async def go() -> None:
        async with (
            AsyncExitStack() as first,
            AsyncExitStack() as rest,
            asyncio.TaskGroup() as group,
        ):
            turns = [await first.enter_async_context(router.turn(None)) for _ in range(2)]
            # it failed on replica 1, and waits for replica 0
            again = group.create_task(
                router.retry(turns[1], InfrastructureError("no answer")), name="again"
            )
            again.add_done_callback(lambda _: seated.append("again"))
            await asyncio.sleep(0)
            for name in ("b", "c"):
                group.create_task(wait(name, rest))
            for _ in range(3):
                await asyncio.sleep(0)
            # on replica 1, which is free
            assert seated == ["b"]
            assert turns[1].replica == -1
            router.limit(0, 2)
            for _ in range(3):
                await asyncio.sleep(0)
            assert seated == ["b", "again"]
            assert turns[1].replica == 0
            router.limit(0, None)

    asyncio.run(go())
    assert seated == ["b", "again", "c"]
