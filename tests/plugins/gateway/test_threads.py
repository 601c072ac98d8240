"""Which conversation a request continues, forks or begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from quintain import Message, ToolCall, Turn
from quintain_gateway.request import PolicyTurn, TurnRequest
from quintain_gateway.threads import Thread, Threads

from .kit import ADD, client


class Told:
    """Keeps what it is told."""

    def __init__(self, name: str, told: Sequence[Message] = ()) -> None:
        self.name, self.told = name, [*told]
        self.ends: list[int] = []

    def add(self, messages: Sequence[Message]) -> None:
        self.told.extend(messages)

    async def turn(self, request: TurnRequest) -> PolicyTurn:
        return PolicyTurn(turn=Turn(text=""))

    def fork(self, name: str, turns: int) -> Told:
        return Told(name, self.told[: self.ends[turns - 1]])


class Policy:
    def conversation(self, name: str) -> Told:
        return Told(name)


def user(text: str) -> Message:
    return Message("user", text)


def said(text: str, *calls: ToolCall) -> Message:
    return Message("assistant", text, calls=calls)


def step(threads: Threads, messages: Sequence[Message], reply: Message) -> Thread:
    """One request, answered with *reply*."""
    thread = threads.take(messages)
    answer(threads, thread, reply)
    return thread


def answer(threads: Threads, thread: Thread, reply: Message) -> None:
    conversation: Any = thread.conversation
    conversation.told.append(reply)
    conversation.ends.append(len(conversation.told))
    threads.answered(thread, reply)
    threads.release(thread)


def told(thread: Thread) -> list[Message]:
    conversation: Any = thread.conversation
    return list(conversation.told)


def test_a_continued_conversation_gets_the_new_messages_only() -> None:
    threads = Threads(Policy())
    history = [user("a")]
    first = step(threads, history, said("1"))
    for k in range(2, 6):
        history = [*history, said(str(k - 1)), user("more")]
        assert step(threads, history, said(str(k))) is first
    assert told(first) == [*history, said("5")]
    assert threads.count == 1
    assert first.turns == 5


def test_blanks_ids_and_reasoning_make_no_difference_and_content_and_calls_do() -> None:
    threads = Threads(Policy())
    call = ToolCall(name="f", arguments={"a": 1, "b": [2]}, id="x")
    first = step(threads, [user("q")], said("ok ", call))
    again = Message(
        "assistant",
        "\nok",
        reasoning="?",
        calls=(ToolCall(name="f", arguments={"b": [2], "a": 1}),),
    )
    result = Message("tool", "r", call_id="y", name="f")
    assert step(threads, [user(" q"), again, result], said("end")) is first
    for changed in (
        said("OK", call),
        said("ok"),
        said("ok", ToolCall(name="g", arguments=call.arguments)),
    ):
        other = step(threads, [user("q"), changed, result], said("end"))
        assert other is not first
        # whole: nothing of it was sampled so
        assert told(other) == [user("q"), changed, result, said("end")]


def test_a_request_at_an_earlier_turn_forks() -> None:
    threads = Threads(Policy())
    one = [user("a"), said("1"), user("b")]
    first = step(threads, one[:1], said("1"))
    step(threads, one, said("2"))
    fork = step(threads, [*one[:2], user("c")], said("3"))
    assert fork is not first
    assert told(fork) == [user("a"), said("1"), user("c"), said("3")]
    assert step(threads, [*one[:2], user("c"), said("3"), user("d")], said("4")) is fork
    assert step(threads, [*one, said("2"), user("e")], said("5")) is first
    # the same request once more: another answer to the same prompt
    again = step(threads, one, said("other"))
    assert again not in (first, fork)
    assert again.turns == 2


def test_parallel_requests_over_one_history_fork_and_are_distinguished_afterwards() -> None:
    threads = Threads(Policy())
    first = step(threads, [user("a")], said("1"))
    base = [user("a"), said("1")]
    together = [threads.take([*base, user(x)]) for x in "xyz"]
    assert together[0] is first
    assert len(set(together)) == 3
    for thread, x in zip(together, "xyz", strict=True):
        answer(threads, thread, said(x * 2))
    for thread, x in zip(together, "xyz", strict=True):
        assert step(threads, [*base, user(x), said(x * 2), user("on")], said("end")) is thread


def test_equal_replies_to_equal_prompts_are_each_continued_once() -> None:
    threads = Threads(Policy())
    pair = [threads.take([user("a")]) for _ in range(2)]
    for thread in pair:
        answer(threads, thread, said("same"))
    history = [user("a"), said("same"), user("b")]
    assert {threads.take(history), threads.take(history)} == set(pair)


def test_a_failed_request_that_is_sent_again_adds_nothing() -> None:
    threads = Threads(Policy())
    thread = threads.take([user("a")])
    threads.release(thread)
    assert threads.take([user("a")]) is thread
    assert told(thread) == [user("a")]
    other = threads.take([user("a")])  # the first is being sampled
    assert other is not thread
    threads.release(thread)
    moved_on = threads.take([user("a"), said("made up"), user("b")])
    assert moved_on not in (thread, other)


def test_a_thread_with_an_unanswered_prompt_is_forked_not_continued() -> None:
    threads = Threads(Policy())
    first = step(threads, [user("a")], said("1"))
    base = [user("a"), said("1")]
    threads.release(threads.take([*base, user("given up")]))
    other = threads.take([*base, user("instead")])
    assert other is not first
    assert told(other) == [*base, user("instead")]


def test_threads_are_numbered_so_that_the_rollouts_of_a_group_compare_thread_by_thread() -> None:
    for contents in ("ab", "xy"):
        threads = Threads(Policy())
        assert [threads.take([user(c)]).name for c in contents] == ["thread-1", "thread-2"]


def test_an_agent_that_rewrites_its_history_has_a_conversation_per_turn() -> None:
    """What it says the policy said is context; what the policy said stays with what it was said
    to.
    """

    async def run() -> None:
        async with client(["first", "second"]) as c:
            await c.chat("a")
            await c.chat("a", "FIRST, as told by the agent", "b")
            assert list(c.branches.values()) == [1, 1]
            assert [t.sampled for t in c.policy.transcripts().values()] == [6, 7]

    asyncio.run(run())


def test_parallel_sub_agents_each_have_their_tokens_once() -> None:
    """A main agent with three sub-agents at once, two turns each, with tools: four conversations,
    one branch each.
    """

    async def run() -> None:
        def reply(messages: list[Message]) -> str:
            return f"reply {sum(m.role == 'assistant' for m in messages)} to {messages[-1].content}"

        async with client(reply) as c:

            async def converse(topic: str) -> str:
                messages: list[Any] = [topic]
                for _ in range(2):
                    answer = await c.chat(*messages, tools=[ADD])
                    messages += [answer["content"], "go on"]
                return str(messages[-2])

            plan = await c.chat("plan")
            parts = await asyncio.gather(*(converse(f"part {i}") for i in range(3)))
            await c.chat("plan", plan["content"], " ".join(parts))
            assert sorted(c.branches.values()) == [1, 1, 1, 1]
            transcripts = c.policy.transcripts().values()
            assert sum(t.sampled for t in transcripts) == sum(
                sum(s.mask) for t in transcripts for s in t.sequences()
            )

    asyncio.run(run())
