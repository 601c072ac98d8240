"""Weights that change while an agent works."""

from __future__ import annotations

import asyncio

from ..case import case
from ..client import AgentClient
from .kit import ADD, call, result

GROUP = "weights"


@case(GROUP, ["The answer is 4.", "In the end 5.", "Nothing."], needs=("versions",))
async def update_between_turns(c: AgentClient) -> None:
    """New weights before the second turn: tokens of the first keep their version"""
    first = (await c.ask("A?")).message
    c.truth.version += 2
    second = (await c.ask("A?", first, "B?")).message
    c.truth.version += 1
    await c.ask("A?", first, "B?", second, "C?")


@case(
    GROUP,
    ["The answer is 4.", "In the end 5."],
    engine={"updates": {1: 5, 2: 3}},
    needs=("versions",),
)
async def update_within_a_turn(c: AgentClient) -> None:
    """New weights after some tokens of a turn: each token has the version that sampled it"""
    first = (await c.ask("A?")).message
    await c.ask("A?", first, "B?")


@case(
    GROUP,
    [call(x=1, y=2), "3"],
    engine={"updates": {1: 9}},
    needs=("versions",),
    streams=True,
)
async def update_within_a_call(c: AgentClient) -> None:
    """New weights within a call, as a stream"""
    reply = await c.ask("Add.", tools=[ADD])
    await c.ask("Add.", reply.message, *(result(one) for one in reply.calls), tools=[ADD])


@case(GROUP, lambda messages, again: f"answer {again}", needs=("versions",))
async def update_before_a_retry(c: AgentClient) -> None:
    """One request before and after an update: two turns of two versions"""
    await c.ask("A?")
    c.truth.version += 1
    await c.ask("A?")


@case(GROUP, lambda messages: f"about {messages[-1].content}", needs=("versions",))
async def update_between_parallel_requests(c: AgentClient) -> None:
    """Requests at once, some of them sampled by newer weights"""
    await asyncio.gather(*(c.ask(f"Old {i}?") for i in range(3)))
    c.truth.version += 1
    await asyncio.gather(*(c.ask(f"New {i}?") for i in range(3)), c.ask("Old 1?"))
