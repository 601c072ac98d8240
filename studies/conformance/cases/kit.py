"""What cases share: a tool, and the loop of an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quintain import Message, Reply, ToolCall, ToolSpec

from ..client import AgentClient, UnexpectedError, talk
from ..truth import Received

__all__ = ["ADD", "LOOK", "call", "result", "solve", "system", "user"]

ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    parameters={
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    },
)
LOOK = ToolSpec(
    name="look",
    description="Look something up.",
    parameters={"type": "object", "properties": {"what": {"type": "string"}}},
)


def user(text: str) -> Message:
    """Return a message of the user."""
    return Message("user", text)


def system(text: str) -> Message:
    """Return a system message."""
    return Message("system", text)


def call(name: str = "add", text: str = "", reasoning: str = "", **arguments: Any) -> Reply:
    """Return a reply with one call."""
    calls = (ToolCall(name=name, arguments=arguments),)
    return Reply(text=text, reasoning=reasoning, calls=calls)


def result(c: ToolCall, text: str = "") -> Message:
    """Return what a tool answers to a call: *text*, or the sum of its arguments."""
    answer = text or str(sum(v for v in c.arguments.values() if isinstance(v, (int, float))))
    return Message("tool", answer, call_id=c.id, name=c.name)


async def solve(
    c: AgentClient,
    *messages: Message | str,
    tools: Sequence[ToolSpec] = (ADD,),
    back: Callable[[Received], Message] = lambda reply: reply.message,
    answers: Callable[[Received], list[Message]] | None = None,
    **options: Any,
) -> list[Message]:
    """Run the loop of an agent: ask, run what is called, until nothing is called.

    Args:
        back: the message that goes into the history for a reply.
        answers: results of a reply's calls; by default sums, in the order of the calls.

    Returns:
        the whole conversation, with the last reply.
    """
    history = talk(*messages)
    for _ in range(20):
        reply = await c.ask(*history, tools=tools, **options)
        history.append(back(reply))
        if not reply.calls:
            return history
        history += answers(reply) if answers else [result(one) for one in reply.calls]
    raise UnexpectedError("expected an end of the calls")
