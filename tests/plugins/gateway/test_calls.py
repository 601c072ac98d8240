"""Calls, thoughts and schemas: what is the agent's mistake, what the policy's, and what is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quintain import Reply, ToolCall
from quintain_authoring import ScriptedEngine
from quintain_gateway.chat import request_of as chat_request
from quintain_gateway.responses import request_of as responses_request

from ..tools.formats.chat_templates import tokenizer_of
from .kit import ADD, CALL, client

ADDING = {"name": "add", "input_schema": ADD["function"]["parameters"]}
FLAT = {"type": "function", **ADD["function"]}
NAMED = {"type": "function", "function": {"name": "mul"}}
STRANGE = {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}}
TWO = Reply(
    text="", calls=tuple(ToolCall(name="add", arguments={"x": x, "y": 1}) for x in (1, 2, 3))
)


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": "?"}]
    return "/chat/completions", {"model": "m", "messages": messages, **more}


def messages(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/messages", {**chat()[1], "max_tokens": 999, **more}


def responses(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/responses", {"model": "m", "input": "?", **more}


REFUSED = [
    (chat(tools=[ADD], tool_choice=NAMED), "tool_choice"),
    (chat(tool_choice=NAMED), "tool_choice"),
    (chat(tool_choice="required"), "tool_choice"),
    (messages(tool_choice={"type": "any"}), "tool_choice"),
    (messages(tools=[ADDING], tool_choice={"type": "tool", "name": "mul"}), "tool_choice"),
    (responses(tool_choice="required"), "tool_choice"),
    (responses(tools=[FLAT], tool_choice={"type": "function", "name": "mul"}), "tool_choice"),
    (
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": STRANGE}}]),
        "tools[0].function.parameters",
    ),
    (messages(tools=[{"name": "f", "input_schema": STRANGE}]), "tools[0].input_schema"),
    (responses(tools=[{"type": "function", "name": "f", "parameters": STRANGE}]), "tools[0].parameters"),
    (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": STRANGE}}),
        "response_format.json_schema.schema",
    ),
    (
        responses(text={"format": {"type": "json_schema", "name": "r", "schema": STRANGE}}),
        "text.format.schema",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "param"), REFUSED)
def test_a_mistake_of_the_agent_is_a_400_and_no_fault_of_the_policy(
    request_: tuple[str, dict[str, Any]], param: str
) -> None:
    async def run() -> None:
        async with client(CALL) as c:
            status, body = await c.post(*request_)
            error = body["error"]
            assert (status, error.get("details", error)["param"]) == (400, param)
            assert c.endpoint.fault == ""
            assert c.endpoint.turns == 0

    asyncio.run(run())


ONE = [
    chat(tools=[ADD], parallel_tool_calls=False),
    messages(tools=[ADDING], tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
    responses(tools=[FLAT], parallel_tool_calls=False),
]


def calls_in(path: str, body: Any) -> list[Any]:
    if path == "/chat/completions":
        return body["choices"][0]["message"].get("tool_calls", [])
    blocks = body["content"] if path == "/messages" else body["output"]
    return [b for b in blocks if b["type"] in ("tool_use", "function_call")]


@pytest.mark.parametrize("request_", ONE, ids=["chat", "messages", "responses"])
def test_parallel_calls_switched_off_are_off(request_: tuple[str, dict[str, Any]]) -> None:
    """The agent gets the first call of three; without the switch it gets all."""
    path, body = request_
    switched = {"parallel_tool_calls", "tool_choice"}

    async def run() -> None:
        async with client(TWO) as c:
            status, answer = await c.post(path, body)
            assert status == 200, answer
            assert len(calls_in(path, answer)) == 1
            assert c.endpoint.fault == ""
            _, answer = await c.post(path, {k: v for k, v in body.items() if k not in switched})
            assert len(calls_in(path, answer)) == 3

    asyncio.run(run())


def test_calls_that_were_not_run_are_answered_with_an_error() -> None:
    """The policy reads why; the conversation stays one."""

    async def run() -> None:
        async with client([TWO, "done"]) as c:
            tools = {"tools": [ADD], "parallel_tool_calls": False}
            said = await c.chat("2 + 3?", **tools)
            (call,) = said["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
            await c.chat("2 + 3?", said, result, **tools)
            (transcript,) = c.policy.transcripts().values()
            text = c.policy.engine.tokenizer.decode(transcript.path(0).ids)
            assert text.count("error: one call at a time") == 2
            assert c.branches == {"thread-1": 1}

    asyncio.run(run())


BROKEN = [
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>SECRET<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.add <|constrain|>json<|message|>{"x": broken',
    ),
    ("Mistral", '[THINK]SECRET[/THINK]Hello[TOOL_CALLS][{"name": "add", "arguments": {"x": broken'),
    ("Qwen3", "<think>\nSECRET\n</think>\n\n<tool_call>\n{broken\n</tool_call>"),
    ("Nemotron 3", "SECRET</think><tool_call><function=add><parameter=x>1</tool_call>"),
]


@pytest.mark.parametrize(("family", "text"), BROKEN, ids=[family for family, _ in BROKEN])
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_broken_call_shows_no_thought(family: str, text: str, choice: str) -> None:
    """The agent reads the text of the call, and the thought where thoughts are shown."""
    engine = ScriptedEngine(replies=text)
    engine.tokenizer = tokenizer_of(family)  # type: ignore[assignment]

    async def run() -> None:
        async with client(engine=engine) as c:
            said = await c.chat("2 + 3?", tools=[ADD], tool_choice=choice)
            assert "SECRET" not in said["content"]
            assert "x" in said["content"] or "broken" in said["content"]
            assert said["reasoning_content"] == "SECRET"

    asyncio.run(run())


USER = {"role": "user", "content": "?"}
SAID = {"role": "assistant", "content": "4"}
ITEM = {"type": "reasoning", "id": "rs_1", "summary": []}
FUNCTION = {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c"}


@pytest.mark.parametrize(
    ("turn", "thought"),
    [
        ({**SAID, "reasoning_content": "hm"}, "hm"),
        ({**SAID, "reasoning": "hm"}, "hm"),
        ({**SAID, "reasoning_content": None, "reasoning": "hm"}, "hm"),
        (SAID, ""),
    ],
)
def test_thoughts_that_an_agent_sends_back_stay_in_chat(turn: Any, thought: str) -> None:
    request = chat_request({"messages": [USER, turn, USER]})
    assert [m.reasoning for m in request.messages] == ["", thought, ""]


@pytest.mark.parametrize(
    ("items", "thoughts"),
    [
        ([{**ITEM, "content": [{"type": "reasoning_text", "text": "hm"}]}, SAID], ["hm"]),
        ([{**ITEM, "summary": [{"type": "summary_text", "text": "hm"}]}, FUNCTION], ["hm"]),
        ([{**ITEM, "content": [{"type": "reasoning_text", "text": "hm"}]}, FUNCTION, FUNCTION], ["hm"]),
        ([{**ITEM, "encrypted_content": "x"}, SAID], [""]),
        ([{**ITEM, "content": [{"type": "reasoning_text", "text": "hm"}]}, USER, SAID], ["", ""]),
    ],
)  # fmt: skip
def test_thoughts_that_an_agent_sends_back_stay_in_responses(items: Any, thoughts: Any) -> None:
    """A reasoning item belongs to the turn that follows it."""
    request = responses_request({"input": [*items, {**USER, "content": "!"}]}, {})
    assert [m.reasoning for m in request.messages[:-1]] == thoughts


@pytest.mark.parametrize("arguments", ["{}", "", "null", None, "absent"])
def test_no_arguments_are_no_arguments(arguments: Any) -> None:
    """However a client spells them when it sends a call back, it is the same conversation."""
    now = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    reply = Reply(text="", calls=(ToolCall(name="now", arguments={}),))

    async def run() -> None:
        async with client([reply, "noon"]) as c:
            said = await c.chat("?", tools=[now])
            (call,) = said["tool_calls"]
            call["function"]["arguments"] = arguments
            if arguments == "absent":
                del call["function"]["arguments"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "12:00"}
            await c.chat("?", said, result, tools=[now])
            assert c.branches == {"thread-1": 1}

    asyncio.run(run())
