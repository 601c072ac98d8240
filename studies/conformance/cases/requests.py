"""Retries, failures, cut streams, cancelled requests, requests at once."""

from __future__ import annotations

import asyncio
from typing import Any

from quintain import Message, Reply

from ..case import case
from ..client import AgentClient, RefusedError, expect
from .kit import ADD, call, result, user

GROUP = "requests"


def numbered(messages: Any, again: int) -> str:
    """Return another reply each time that the same tokens are continued."""
    return f"reply {len(messages)}, number {again}"


@case(GROUP, numbered)
async def retry_after_a_reply(c: AgentClient) -> None:
    """The client sends a request again whose reply it has read, and goes on from the second"""
    await c.ask("What is the answer?")
    reply = await c.ask("What is the answer?")
    await c.ask("What is the answer?", reply.message, "And?")


@case(GROUP, numbered)
async def retry_within_a_conversation(c: AgentClient) -> None:
    """The second turn is asked for three times, and goes on from the first of them"""
    first = (await c.ask("A?")).message
    replies = [await c.ask("A?", first, "B?") for _ in range(3)]
    await c.ask("A?", first, "B?", replies[0].message, "C?")


@case(GROUP, lambda messages: f"the same reply {len(messages)}")
async def retry_with_the_same_reply(c: AgentClient) -> None:
    """The repeated request gets a reply of the same tokens"""
    first = (await c.ask("A?")).message
    second = [await c.ask("A?", first, "B?") for _ in range(2)]
    await c.ask("A?", first, "B?", second[1].message, "C?")


@case(GROUP, numbered, engine={"fail_on": (2,)})
async def retry_after_a_failure(c: AgentClient) -> None:
    """The engine fails once within a conversation, and the client tries again"""
    first = (await c.ask("A?")).message
    try:
        second = await c.ask("A?", first, "B?")
    except RefusedError as e:
        expect(e.status >= 500, f"an error that clients retry, not {e}")
        second = await c.ask("A?", first, "B?")
    await c.ask("A?", first, "B?", second.message, "C?")


@case(GROUP, numbered, needs=("stream",))
async def cut_stream(c: AgentClient) -> None:
    """The client leaves within a stream and does not come back to it"""
    first = (await c.ask("A?")).message
    await c.cut("A?", first, "B?")
    await c.ask("A?", first, "Something else?")


@case(GROUP, numbered, needs=("stream",))
async def retry_after_a_cut_stream(c: AgentClient) -> None:
    """The client leaves within a stream and asks again"""
    first = (await c.ask("A?")).message
    await c.cut("A?", first, "B?")
    second = await c.ask("A?", first, "B?")
    await c.ask("A?", first, "B?", second.message, "C?")


@case(GROUP, numbered)
async def cancelled_request(c: AgentClient) -> None:
    """The client leaves while its turn is sampled, and asks something else"""
    first = (await c.ask("A?")).message
    await c.cancelled("A?", first, "B?")
    await c.ask("A?", first, "Something else?")


@case(GROUP, numbered)
async def cancelled_request_sent_again(c: AgentClient) -> None:
    """The client leaves while its turn is sampled, and asks again"""
    await c.cancelled("A?")
    first = (await c.ask("A?")).message
    await c.cancelled("A?", first, "B?")
    second = await c.ask("A?", first, "B?")
    await c.ask("A?", first, "B?", second.message, "C?")


@case(GROUP, lambda messages: f"about {messages[-1].content}")
async def two_requests_in_one_conversation(c: AgentClient) -> None:
    """Two requests at once continue one conversation, and then each goes on"""
    first = (await c.ask("A?")).message
    b, d = await asyncio.gather(c.ask("A?", first, "B?"), c.ask("A?", first, "D?"))
    await asyncio.gather(
        c.ask("A?", first, "B?", b.message, "C?"), c.ask("A?", first, "D?", d.message, "E?")
    )


@case(GROUP, numbered)
async def one_request_twice_at_once(c: AgentClient) -> None:
    """The same request twice at once within a conversation"""
    first = (await c.ask("A?")).message
    b, _ = await asyncio.gather(c.ask("A?", first, "B?"), c.ask("A?", first, "B?"))
    await c.ask("A?", first, "B?", b.message, "C?")


@case(GROUP, lambda messages: f"about {messages[-1].content}")
async def next_request_before_the_reply(c: AgentClient) -> None:
    """A second request of the conversation arrives while the first is sampled"""
    first = (await c.ask("A?")).message
    c.truth.hold()
    waiting = asyncio.create_task(c.ask("A?", first, "B?"))
    await c.running(1)
    other = asyncio.create_task(c.ask("A?", first, "B?", Message("assistant", "guess"), "C?"))
    await c.running(2)
    c.truth.release()
    b = await waiting
    await other
    await c.ask("A?", first, "B?", b.message, "C?")


@case(GROUP, numbered)
async def agent_ends_within_a_request(c: AgentClient) -> None:
    """The agent ends while a request of its own is being sampled"""
    await c.ask("A?")
    c.truth.hold()
    waiting = asyncio.create_task(c.ask("Something else?"))
    await c.running(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    # for layers that let the engine go on
    c.truth.unread.add(len(c.truth.log))
    asyncio.get_running_loop().call_later(0.2, c.truth.release)


@case(GROUP, numbered)
async def refused_image(c: AgentClient) -> None:
    """An image is refused, nothing is sampled for it, and the conversation goes on"""
    first = (await c.ask("A?")).message
    image: Any = {
        "chat": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        "responses": {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        "messages": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
        },
    }[c.name]
    status = await c.refused("A?", first, Message("user", [image]))  # type: ignore[arg-type]
    expect(400 <= status < 500, f"an error of the request, not HTTP {status}")
    await c.ask("A?", first, "B?")


@case(GROUP, numbered)
async def refused_body(c: AgentClient) -> None:
    """A body without messages is refused, and the conversation goes on"""
    first = (await c.ask("A?")).message
    status = await c.refused()
    expect(400 <= status < 500, f"an error of the request, not HTTP {status}")
    await c.ask("A?", first, "B?")


@case(GROUP, [call(x=1, y=2), Reply(text="3")])
async def retry_of_a_turn_with_calls(c: AgentClient) -> None:
    """A request with results is sent again after its reply was read"""
    reply = await c.ask("Add.", tools=[ADD])
    history = [user("Add."), reply.message, *(result(one) for one in reply.calls)]
    await c.ask(*history, tools=[ADD])
    await c.ask(*history, tools=[ADD])
