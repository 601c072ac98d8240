"""Calls of tools, and what clients make of them."""

from __future__ import annotations

import json
from dataclasses import replace

from quintain import Message, Reply, ToolCall

from ..case import case
from ..client import AgentClient
from ..truth import Received
from .kit import ADD, LOOK, call, result, solve, system, user

GROUP = "tools"
TWO = Reply(
    text="I add twice.",
    calls=(
        ToolCall(name="add", arguments={"x": 1, "y": 2}),
        ToolCall(name="add", arguments={"x": 3, "y": 4}),
    ),
)


@case(GROUP, [call(x=1, y=2), "The answer is 3."])
async def one_call(c: AgentClient) -> None:
    """A call, its result, a reply"""
    await solve(c, "What is 1 + 2?")


@case(GROUP, [call(x=1, y=2), "The answer is 3."], streams=True)
async def one_call_streamed(c: AgentClient) -> None:
    """The same as streams"""
    await solve(c, "What is 1 + 2?")


@case(GROUP, [call(x=i, y=2, text="I add.") for i in range(6)] + ["Done."])
async def six_calls_in_a_row(c: AgentClient) -> None:
    """Six turns with a text and a call each"""
    await solve(c, system("Use the tool."), "Add.")


@case(GROUP, [TWO, "3 and 7"])
async def parallel_calls(c: AgentClient) -> None:
    """Two calls in one turn"""
    await solve(c, "Add both.")


@case(GROUP, [TWO, "3 and 7"], streams=True)
async def parallel_calls_streamed(c: AgentClient) -> None:
    """Two calls in one turn, as a stream"""
    await solve(c, "Add both.")


@case(GROUP, [TWO, "3 and 7"])
async def results_in_another_order(c: AgentClient) -> None:
    """The results of two calls come back in the other order"""
    await solve(c, "Add both.", answers=lambda r: [result(one) for one in reversed(r.calls)])


@case(GROUP, [TWO, "3 and 7"], dialects=("chat", "responses"))
async def one_result_is_missing(c: AgentClient) -> None:
    """The client answers one of two calls alone"""
    await solve(c, "Add both.", answers=lambda r: [result(r.calls[0])])


@case(GROUP, [TWO, "3 and 7"])
async def ids_of_calls_renamed(c: AgentClient) -> None:
    """The client gives calls ids of its own"""
    names: dict[str, str] = {}

    def renamed(one: ToolCall) -> ToolCall:
        return replace(one, id=names.setdefault(one.id, f"toolu_{len(names)}"))

    def back(reply: Received) -> Message:
        return replace(reply.message, calls=tuple(map(renamed, reply.calls)))

    await solve(
        c, "Add both.", back=back, answers=lambda r: [result(renamed(one)) for one in r.calls]
    )


@case(
    GROUP,
    [call(name="look", what="Grüße, \U0001f600", deep={"b": [1, 2], "a": None}), "Found."],
)
async def arguments_written_anew(c: AgentClient) -> None:
    """The client sorts and re-indents the arguments, with other escapes"""

    def back(reply: Received) -> Message:
        calls = tuple(
            replace(one, arguments=json.loads(json.dumps(one.arguments, sort_keys=True, indent=4)))
            for one in reply.calls
        )
        return replace(reply.message, calls=calls)

    await solve(c, "Look.", tools=[LOOK], back=back, answers=lambda r: [result(r.calls[0], "ok")])


@case(GROUP, [call(x=1.0, y=2.50), "3.5"])
async def numbers_that_clients_round(c: AgentClient) -> None:
    """The client writes 1.0 as 1, as JavaScript does"""

    def back(reply: Received) -> Message:
        calls = tuple(replace(one, arguments={"x": 1, "y": 2.5}) for one in reply.calls)
        return replace(reply.message, calls=calls)

    await solve(c, "Add.", back=back)


@case(GROUP, [call(x=1, y=2), call(x=1, y=9), "10"])
async def edited_call(c: AgentClient) -> None:
    """The client changes an argument in its history: the changed call was not sampled"""

    def back(reply: Received) -> Message:
        calls = tuple(replace(one, arguments={"x": 1, "y": 9}) for one in reply.calls)
        return replace(reply.message, calls=calls)

    await solve(c, "Add.", back=back)


@case(GROUP, [TWO, "3"])
async def one_of_two_calls_left_out(c: AgentClient) -> None:
    """The client leaves one of two calls out of its history"""

    def back(reply: Received) -> Message:
        return replace(reply.message, calls=reply.calls[:1])

    await solve(c, "Add both.", back=back, answers=lambda r: [result(one) for one in r.calls[:1]])


@case(GROUP, [call(x=1, y=2, text="Let me add."), "3"])
async def text_beside_a_call_left_out(c: AgentClient) -> None:
    """The client drops the text of a turn that has a call"""

    def back(reply: Received) -> Message:
        return replace(reply.message, content=reply.text if not reply.calls else "")

    await solve(c, "Add.", back=back)


@case(GROUP, [call(x=1, y=2), "3"])
async def calls_and_results_as_text(c: AgentClient) -> None:
    """The client writes calls and results as text of user and assistant"""
    reply = await c.ask("Add.", tools=[ADD])
    text = f"I called add with {dict(reply.calls[0].arguments)}."
    await c.ask("Add.", Message("assistant", text), "The result is 3.", tools=[ADD])


@case(GROUP, ['\n<tool_call>\n{"name": "add", "arguments": {"x": 1,}\n</tool_call>'], shown=False)
async def call_that_cannot_be_read(c: AgentClient) -> None:
    """A call with broken JSON, and the client's complaint"""
    reply = await c.ask("Add.", tools=[ADD])
    await c.ask("Add.", reply.message, "That was no call.", tools=[ADD])


BESIDE = '\n<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>'


@case(GROUP, [BESIDE + "\n<tool_call>\n{nothing}\n</tool_call>", "3"], shown=False)
async def broken_call_beside_a_good_one(c: AgentClient) -> None:
    """One call of two can be read: the client answers that one"""
    await solve(c, "Add both.")


@case(GROUP, [call(name="divide", x=1, y=2), "There is no such tool."], shown=False)
async def call_of_an_unknown_tool(c: AgentClient) -> None:
    """The policy calls what was not offered"""
    reply = await c.ask("Divide.", tools=[ADD])
    answers = [result(one, "error: no tool divide") for one in reply.calls]
    await c.ask("Divide.", reply.message, *(answers or [user("There is none.")]), tools=[ADD])


@case(
    GROUP,
    [f"<think>I could write {BESIDE} here.</think>" + BESIDE, "The answer is 3."],
    shown=False,
)
async def call_inside_a_thought(c: AgentClient) -> None:
    """A call inside of a thought is none, the one after it is"""
    reply = await c.ask("Add.", tools=[ADD])
    answers = [result(one) for one in reply.calls]
    await c.ask("Add.", reply.message, *(answers or [user("And?")]), tools=[ADD])


@case(GROUP, f"<think>I could write {BESIDE} here.", shown=False)
async def call_inside_an_open_thought(c: AgentClient) -> None:
    """A call inside of a thought that never ends"""
    reply = await c.ask("Add.", tools=[ADD])
    answers = [result(one) for one in reply.calls]
    await c.ask("Add.", reply.message, *(answers or [user("And?")]), tools=[ADD])


@case(GROUP, [call(x=1, y=2), call(name="look", what="3"), "Done."])
async def tools_change_within_a_conversation(c: AgentClient) -> None:
    """Another list of tools with each request"""
    first = await c.ask("Go.", tools=[ADD])
    history = [first.message, result(first.calls[0])]
    second = await c.ask("Go.", *history, tools=[ADD, LOOK])
    history += [second.message, result(second.calls[0], "it is 3")]
    await c.ask("Go.", *history, tools=[LOOK])


@case(GROUP, [call(x=1, y=2), "The answer is 3."], dialects=("chat", "responses"))
async def no_tools_in_the_last_request(c: AgentClient) -> None:
    """The last request offers no tools, so that the policy has to answer"""
    first = await c.ask("Go.", tools=[ADD])
    await c.ask("Go.", first.message, result(first.calls[0]))


@case(
    GROUP,
    ["Hello.", call(x=1, y=2), "3"],
)
async def tools_in_a_later_turn(c: AgentClient) -> None:
    """The first request offers no tools, the second does"""
    first = await c.ask("Hello.")
    await solve(c, "Hello.", first.message, "What is 1 + 2?")


@case(GROUP, [call(x=1, y=2), "3"], needs=("tool_choice",), shown=False, dialects=("chat",))
async def calls_not_allowed(c: AgentClient) -> None:
    """`tool_choice` is none, and the policy calls all the same"""
    reply = await c.ask("Add.", tools=[ADD], tool_choice="none")
    await c.ask("Add.", reply.message, "Do not call.", tools=[ADD], tool_choice="none")


@case(GROUP, [call(name="look", what="x"), "Nothing there."])
async def empty_result(c: AgentClient) -> None:
    """A tool that answers nothing"""
    first = await c.ask("Look.", tools=[LOOK])
    empty = Message("tool", "", call_id=first.calls[0].id, name="look")
    await c.ask("Look.", first.message, empty, tools=[LOOK])


@case(GROUP, [call(name="look", what="the answer", text="the answer"), "the answer"])
async def result_repeats_the_policy(c: AgentClient) -> None:
    """The result is what the policy said before: it must not train"""
    await solve(c, "Look.", tools=[LOOK], answers=lambda r: [result(r.calls[0], "the answer")])


@case(GROUP, [call(name="look", what="x"), "Found."])
async def long_result(c: AgentClient) -> None:
    """A result of ten thousand tokens"""
    await solve(c, "Look.", tools=[LOOK], answers=lambda r: [result(r.calls[0], "data " * 2000)])
