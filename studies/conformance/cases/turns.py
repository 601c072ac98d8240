"""Plain conversations, in every API, as streams and not."""

from __future__ import annotations

from typing import Any

from quintain import Message

from ..case import case
from ..client import AgentClient
from .kit import system, user

GROUP = "turns"


@case(GROUP, "The answer is 4.")
async def one_turn(c: AgentClient) -> None:
    """One question, one reply"""
    await c.ask("What is 2 + 2?")


@case(GROUP, "The answer is 4.", streams=True)
async def one_turn_streamed(c: AgentClient) -> None:
    """One question, the reply as a stream"""
    await c.ask("What is 2 + 2?")


@case(GROUP, ["The answer is 4.", "And in the end 5.", "Nothing more."])
async def three_turns(c: AgentClient) -> None:
    """Three turns whose replies the client sends back as it got them"""
    history: list[Any] = ["What is 2 + 2?"]
    for question in ("And one more?", "Is that all?", ""):
        history += [(await c.ask(*history)).message, question]


@case(GROUP, ["The answer is 4.", "And in the end 5.", "Nothing more."], streams=True)
async def three_turns_streamed(c: AgentClient) -> None:
    """The same as streams"""
    await three_turns(c)


@case(GROUP, lambda messages: f"reply {len(messages)} is in the answer {'and ' * len(messages)}")
async def twenty_turns(c: AgentClient) -> None:
    """Twenty turns of one conversation"""
    history: list[Any] = [system("Be brief.")]
    for i in range(20):
        history.append(f"Part {i}: what is the answer?")
        history.append((await c.ask(*history)).message)


@case(GROUP, ["Understood.", "The end."])
async def system_message(c: AgentClient) -> None:
    """A system message, and a second turn after it"""
    reply = await c.ask(system("Answer in one word."), "Do you understand?")
    await c.ask(system("Answer in one word."), "Do you understand?", reply.message, "What now?")


@case(GROUP, ["Yes.", "Still yes.", "At last."], dialects=("chat", "responses"))
async def system_messages_within(c: AgentClient) -> None:
    """System messages between turns, as reminders"""
    history: list[Any] = [system("Be brief."), user("Ready?")]
    history += [(await c.ask(*history)).message, system("Be briefer."), user("Ready now?")]
    history += [(await c.ask(*history)).message, user("And now?"), system("One word.")]
    await c.ask(*history)


@case(GROUP, ["The answer.", "The second answer."], dialects=("chat",))
async def content_in_parts(c: AgentClient) -> None:
    """The client sends texts as lists of parts, its own and the policy's"""
    body: dict[str, Any] = {"model": "policy"}
    conversation: list[Any] = [user("What is the answer?")]
    for question in ("And the second?", ""):
        body["messages"] = [
            {"role": m.role, "content": [{"type": "text", "text": m.content}]} for m in conversation
        ]
        (reply,) = c.note(conversation, await c.post("/chat/completions", body))
        conversation += [reply.message, user(question)]


@case(GROUP, ["It is morning.", "It is noon."])
async def system_message_with_a_clock(c: AgentClient) -> None:
    """The system message holds the time, so that each request begins with other tokens"""
    reply = await c.ask(system("The time is 08:00."), "What time is it?")
    await c.ask(system("The time is 12:00."), "What time is it?", reply.message, "And now?")


@case(GROUP, ["a reply", "another reply"])
async def two_conversations(c: AgentClient) -> None:
    """Two conversations that take turns"""
    first: list[Any] = ["The first: what is the answer?"]
    second: list[Any] = ["The second: what is the answer?"]
    for history in (first, second, first, second):
        history += [(await c.ask(*history)).message, "Go on."]


@case(GROUP, ["Yes.", "Still yes."])
async def messages_of_one_role_in_a_row(c: AgentClient) -> None:
    """Two messages of the user follow each other, before and after a reply"""
    start = [user("Part one of the question."), user("Part two.")]
    reply = await c.ask(*start)
    await c.ask(*start, reply.message, user("One more part."), user("The last part."))


@case(GROUP, ["  \n The answer is 4. \n\n", "The end."])
async def blanks_around_a_reply(c: AgentClient) -> None:
    """A reply with blanks around it, which clients strip"""
    reply = await c.ask("What is 2 + 2?")
    await c.ask("What is 2 + 2?", Message("assistant", reply.text), "And?")


@case(GROUP, ["answer " * 700, "The end."])
async def long_reply(c: AgentClient) -> None:
    """A reply of several thousand tokens, and a turn after it"""
    reply = await c.ask("Write a long answer.")
    await c.ask("Write a long answer.", reply.message, "Is that all?")


@case(GROUP, ["The answer.", "The second answer."], dialects=("responses",))
async def item_ids_sent_back(c: AgentClient) -> None:
    """The client sends the items of the response back as they are, ids and all"""
    body: dict[str, Any] = {"model": "policy", "input": [{"role": "user", "content": "Ask."}]}
    whole = await c.post("/responses", body)
    (reply,) = c.note([user("Ask.")], whole)
    body["input"] += [*whole["output"], {"role": "user", "content": "And?"}]
    whole = await c.post("/responses", body)
    c.note([user("Ask."), reply.message, user("And?")], whole)


@case(
    GROUP,
    ["The answer.", "The second answer.", "The third."],
    dialects=("responses",),
    needs=("previous_response_id",),
)
async def previous_response_id(c: AgentClient) -> None:
    """The client names the previous response in place of the history"""
    first = await c.ask("What is the answer?")
    second = await c.ask("And the second?", previous_response_id=first.id)
    await c.ask("And the third?", previous_response_id=second.id)


@case(
    GROUP,
    ["The answer.", "The second answer.", "The third."],
    dialects=("responses",),
    needs=("previous_response_id",),
)
async def previous_response_id_twice(c: AgentClient) -> None:
    """Two requests continue one previous response: a fork"""
    first = await c.ask("What is the answer?")
    await c.ask("One way.", previous_response_id=first.id)
    await c.ask("Another way.", previous_response_id=first.id)
