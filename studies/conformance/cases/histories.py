"""Agents that write their history anew: compaction, sub-agents, forks, thoughts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quintain import Message, Reply

from ..case import case
from ..client import AgentClient
from .kit import ADD, call, result, solve, system, user

GROUP = "histories"
THOUGHT = Reply(text="The answer is 4.", reasoning="Two and two.")


def spoken(messages: Sequence[Message]) -> str:
    """Return a reply that says which conversation it belongs to."""
    return f"reply {len(messages)} to {messages[-1].content[:60]}"


@case(GROUP, [THOUGHT, THOUGHT, "The end."], dialects=("chat",))
async def thoughts_sent_back(c: AgentClient) -> None:
    """The client sends the thoughts of the policy back"""
    history: list[Any] = ["What is 2 + 2?"]
    for _ in range(3):
        history += [(await c.ask(*history)).message, "Again."]


@case(GROUP, [THOUGHT, THOUGHT, "The end."])
async def thoughts_left_out(c: AgentClient) -> None:
    """The client drops the thoughts of the policy"""
    history: list[Any] = ["What is 2 + 2?"]
    for _ in range(3):
        reply = await c.ask(*history)
        history += [replace(reply.message, reasoning=""), "Again."]


@case(GROUP, [THOUGHT, THOUGHT, "The end."], dialects=("messages",))
async def thinking_blocks(c: AgentClient) -> None:
    """The client asks for blocks of thoughts and sends them back"""
    history: list[Any] = ["What is 2 + 2?"]
    for _ in range(3):
        reply = await c.ask(*history, thinking={"type": "enabled", "budget_tokens": 1024})
        history += [reply.message, "Again."]


@case(GROUP, [call(x=1, y=2, reasoning="I add."), "3"])
async def thought_before_a_call_left_out(c: AgentClient) -> None:
    """A thought before a call, which the client drops"""
    await solve(c, "Add.", back=lambda reply: replace(reply.message, reasoning=""))


STRIPPING = {"strips_thoughts": True}


@case(GROUP, [THOUGHT, THOUGHT, "The end."], engine=STRIPPING)
async def thoughts_stripped_by_the_template(c: AgentClient) -> None:
    """The chat template drops thoughts of earlier turns, so that each turn has another context"""
    await thoughts_left_out(c)


@case(
    GROUP,
    [call(x=1, y=2, reasoning="I add."), call(x=3, y=4, reasoning="More."), THOUGHT, "The end."],
    engine=STRIPPING,
)
async def thoughts_before_calls_stripped_by_the_template(c: AgentClient) -> None:
    """The same with calls, whose thoughts stay until the next message of the user"""
    history = await solve(c, "Add.", back=lambda reply: replace(reply.message, reasoning=""))
    await c.ask(*history, "And?", tools=[ADD])


@case(GROUP, [THOUGHT, THOUGHT, "One end."], engine=STRIPPING)
async def fork_after_the_template_stripped(c: AgentClient) -> None:
    """A fork at a turn whose thought the template has dropped since"""
    history: list[Any] = ["What is 2 + 2?"]
    for _ in range(2):
        history += [replace((await c.ask(*history)).message, reasoning=""), "Again."]
    await c.ask(*history)
    await c.ask(*history[:2], "Otherwise?")
    await c.ask(*history[:4], "Or so?")


@case(GROUP, spoken)
async def fork_at_an_earlier_turn(c: AgentClient) -> None:
    """The client goes back to its first turn and asks something else"""
    history: list[Any] = ["A?", (await c.ask("A?")).message]
    longer = [*history, "B?", (await c.ask(*history, "B?")).message]
    await c.ask(*longer, "C?")
    other = [*history, "D?", (await c.ask(*history, "D?")).message]
    await c.ask(*other, "E?")
    await c.ask(*longer, "F?")


@case(GROUP, spoken)
async def abandoned_branch(c: AgentClient) -> None:
    """A branch of two turns that the client reads and drops"""
    first = (await c.ask("A?")).message
    second = (await c.ask("A?", first, "A way?")).message
    await c.ask("A?", first, "A way?", second, "On?")
    await c.ask("A?", first, "Another way?")


@case(GROUP, spoken)
async def compaction(c: AgentClient) -> None:
    """The policy writes a summary, and the conversation goes on from it"""
    history: list[Any] = [system("Work."), "Part 1?"]
    for i in (2, 3):
        history += [(await c.ask(*history)).message, f"Part {i}?"]
    summary = await c.ask(*history, user("Sum up."))
    start: list[Any] = [system("Work."), f"So far: {summary.text}\nPart 4?"]
    start += [(await c.ask(*start)).message, "Part 5?"]
    await c.ask(*start)


@case(GROUP, spoken)
async def compaction_twice(c: AgentClient) -> None:
    """Two summaries, the second over the first"""
    start: list[Any] = [system("Work."), "Part 1?"]
    for i in (2, 3):
        start += [(await c.ask(*start)).message, f"Part {i}?"]
        summary = await c.ask(*start, user("Sum up."))
        start = [system("Work."), f"So far: {summary.text}\nPart {i} again?"]
    await c.ask(*start)


@case(GROUP, spoken)
async def summary_as_a_turn_of_the_assistant(c: AgentClient) -> None:
    """The summary of the policy becomes a turn of the assistant after another prompt"""
    reply = await c.ask("Part 1?")
    summary = await c.ask("Part 1?", reply.message, "Sum up.")
    await c.ask("What happened?", summary.message, "Part 2?")


@case(GROUP, spoken)
async def oldest_turns_dropped(c: AgentClient) -> None:
    """A window over the last turns"""
    history: list[Any] = [user("Part 0?")]
    for i in range(1, 6):
        history += [(await c.ask(system("Work."), *history[-3:])).message, user(f"Part {i}?")]


@case(GROUP, [call(x=1, y=1), call(x=2, y=2), call(x=3, y=3), "12"])
async def results_cleared(c: AgentClient) -> None:
    """Old results are replaced by a remark"""
    history: list[Message] = [user("Add.")]
    while history[-1].role != "assistant" or history[-1].calls:
        cleared = [
            replace(m, content="[cleared]") if m.role == "tool" and m is not history[-1] else m
            for m in history
        ]
        reply = await c.ask(*cleared, tools=[ADD])
        history += [reply.message, *(result(one) for one in reply.calls)]


@case(GROUP, spoken)
async def edited_reply(c: AgentClient) -> None:
    """The client changes a reply in its history: what it wrote must not train"""
    await c.ask("A?")
    await c.ask("A?", Message("assistant", "What the client says instead."), "B?")


@case(GROUP, "The answer.")
async def invented_turns(c: AgentClient) -> None:
    """Turns of the assistant that nobody sampled, as examples"""
    examples = ["1 + 1?", "The answer.", "1 + 2?", "3", "1 + 3?"]
    reply = await c.ask(*examples)
    await c.ask(*examples, reply.message, "1 + 4?")


@case(GROUP, spoken)
async def a_turn_left_out(c: AgentClient) -> None:
    """The client leaves a whole turn out of the middle"""
    first = (await c.ask("A?")).message
    second = (await c.ask("A?", first, "B?")).message
    await c.ask("A?", second, "C?")


@case(GROUP, spoken)
async def system_message_added_later(c: AgentClient) -> None:
    """A system message appears with the second request"""
    first = (await c.ask("A?")).message
    await c.ask(system("Be brief."), "A?", first, "B?")


@case(GROUP, spoken)
async def sub_agent(c: AgentClient) -> None:
    """A sub-agent with another system message, between two turns of its caller"""
    main: list[Any] = [system("You lead."), "The task."]
    main.append((await c.ask(*main)).message)
    found = await c.ask(system("You look things up."), "Look.")
    await c.ask(*main, f"It found: {found.text}")


@case(GROUP, spoken)
async def nested_sub_agents(c: AgentClient) -> None:
    """Sub-agents of sub-agents, three deep, with two turns each"""

    async def work(depth: int) -> str:
        history: list[Any] = [system(f"You are on level {depth}."), "Work."]
        history.append((await c.ask(*history)).message)
        found = await work(depth + 1) if depth < 3 else "nothing"
        return (await c.ask(*history, f"Found: {found[:40]}")).text

    await work(1)


@case(GROUP, spoken)
async def parallel_sub_agents(c: AgentClient) -> None:
    """Three sub-agents at once, two turns each, then their caller"""

    async def work(i: int) -> str:
        history: list[Any] = [system("You help."), f"Part {i}."]
        history.append((await c.ask(*history)).message)
        return (await c.ask(*history, f"More of {i}.")).text

    plan = (await c.ask("Plan.")).message
    parts = await asyncio.gather(*map(work, range(3)))
    await c.ask("Plan.", plan, " ".join(parts))


@case(GROUP, lambda messages, again: f"reply {len(messages)} number {again}")
async def sub_agents_with_one_prompt(c: AgentClient) -> None:
    """Three sub-agents at once with the same messages"""
    replies = await asyncio.gather(*(c.ask("Work.") for _ in range(3)))
    await c.ask("Work.", replies[1].message, "Go on.")


@case(GROUP, [call(name="add", x=1, y=2), call(name="add", x=1, y=2), "3"])
async def same_call_twice(c: AgentClient) -> None:
    """The policy makes the same call in two turns, with the same result"""
    await solve(c, "Add.")


@case(GROUP, "and so on.", dialects=("chat", "responses"), needs=("prefill",))
async def prefilled_reply(c: AgentClient) -> None:
    """The client writes the beginning of the reply, which must not train"""
    start = [user("Tell me."), Message("assistant", "Once upon a time")]
    reply = await c.ask(*start)
    await c.ask(*start, reply.message, "And then?")
