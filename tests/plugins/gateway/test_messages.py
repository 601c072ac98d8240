"""Anthropic's Messages API over plain HTTP: blocks, stops, streams, counts, errors, keys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quintain import Reply, Task, ToolCall
from quintain_authoring import ScriptedEngine, run_episode
from quintain_gateway import Gateway
from quintain_gateway.errors import ApiError
from quintain_gateway.messages import request_of

from .kit import ADD, Client, Slow, client, until

ADDING = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": ADD["function"]["parameters"],
}
CALLS = tuple(ToolCall(name="add", arguments={"x": i, "y": 3}) for i in (2, 4))
CALL = Reply(text="I add.", calls=CALLS[:1])


def ask(*turns: Any, **more: Any) -> dict[str, Any]:
    """A request whose turns are a user's and the assistant's by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"model": "m", "max_tokens": 200, "messages": messages, **more}


async def send(c: Client, *turns: Any, **more: Any) -> Any:
    status, body = await c.post("/messages", ask(*turns, **more))
    assert status == 200, body
    return body


def text_of(c: Client, name: str = "thread-1") -> str:
    return str(c.policy.engine.tokenizer.decode(c.policy.transcripts()[name].path(0).ids))


def test_message() -> None:
    async def run() -> None:
        async with client("four") as c:
            body = await send(c, "2 + 2?", system="Be brief.", anthropic_version="x")
            (transcript,) = c.policy.transcripts().values()
            usage = body.pop("usage")
            assert body.pop("id").startswith("msg_")
            assert body == {
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [{"type": "text", "text": "four", "citations": None}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
            }
            assert usage["output_tokens"] == transcript.sampled == 5
            assert usage["input_tokens"] == len(transcript.path(0).ids) - 5
            assert text_of(c).startswith("<|im_start|>system\nBe brief.<|im_end|>")

    asyncio.run(run())


def test_calls_and_results_in_blocks_are_one_conversation() -> None:
    """Two calls in one turn, their results and a text in the next, cache marks everywhere."""
    mark = {"cache_control": {"type": "ephemeral"}}

    async def run() -> None:
        async with client([Reply(text="I add.", calls=CALLS), "5 and 7"]) as c:
            tools = [ADDING | mark]
            system = [{"type": "text", "text": "Add.", **mark}]
            question = [{"type": "text", "text": "2 + 3, 4 + 3?", **mark}]
            said = await send(c, question, tools=tools, system=system)
            assert said["stop_reason"] == "tool_use"
            assert [b["type"] for b in said["content"]] == ["text", "tool_use", "tool_use"]
            calls = said["content"][1:]
            assert [call["input"] for call in calls] == [{"x": 2, "y": 3}, {"x": 4, "y": 3}]
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "5"},
                {
                    "type": "tool_result",
                    "tool_use_id": calls[1]["id"],
                    "content": [{"type": "text", "text": "7"}],
                    **mark,
                },
                {"type": "text", "text": "Well?"},
            ]
            content = said["content"]
            last = await send(c, question, content, results, tools=tools, system=system)
            assert last["content"][0]["text"] == "5 and 7"
            assert list(c.branches.values()) == [1]
            text = text_of(c)
            assert text.index("\n5\n") < text.index("\n7\n") < text.index("Well?")

    asyncio.run(run())


def test_a_failed_tool_without_a_text_is_an_error() -> None:
    async def run() -> None:
        async with client([CALL, "no"]) as c:
            said = (await send(c, "2 + 3?", tools=[ADDING]))["content"]
            failed = {"type": "tool_result", "tool_use_id": said[1]["id"], "is_error": True}
            await send(c, "2 + 3?", said, [failed], tools=[ADDING])
            assert "<tool_response>\nerror\n</tool_response>" in text_of(c)

    asyncio.run(run())


@pytest.mark.parametrize("asked", [None, "disabled", "enabled", "adaptive"])
def test_thoughts_are_shown_to_those_who_ask(asked: str | None) -> None:
    """A program that does not expect a thinking block reads ``content[0].text``."""
    more: Any = {"thinking": {"type": asked}} if asked else {}

    async def run() -> None:
        async with client([Reply(text="4", reasoning="2 and 2"), "5"]) as c:
            content = (await send(c, "2 + 2?", **more))["content"]
            shown = [b["thinking"] for b in content if b["type"] == "thinking"]
            assert shown == (["2 and 2"] if asked in ("enabled", "adaptive") else [])
            await send(c, "2 + 2?", content, "2 + 3?", **more)
            assert list(c.branches.values()) == [1]  # in either form the conversation goes on
            assert "2 and 2" in text_of(c)

    asyncio.run(run())


def test_stop_reasons() -> None:
    async def run() -> None:
        async with client("one two three") as c:
            cut = await send(c, "a", max_tokens=3)
            assert cut["stop_reason"] == "max_tokens"
            assert cut["content"][0]["text"] == "one"
            stopped = await send(c, "b", stop_sequences=["two", "three"])
            assert stopped["stop_reason"] == "stop_sequence"
            assert stopped["stop_sequence"] == "two"
            assert stopped["content"][0]["text"] == "one"
            ended = await send(c, "c", stop_sequences=["four"])
            assert ended["stop_reason"] == "end_turn"
            assert ended["stop_sequence"] is None
        async with client("") as c:
            assert (await send(c, "?"))["content"] == []

    asyncio.run(run())


def test_stop_sequence_and_count_in_an_episode() -> None:
    """The session of an episode says what ended a turn, and how long a prompt is."""
    from quintain import Environment, need, reward

    @reward
    def none(rollout: Any) -> float:
        return 0.0

    class Outside(Environment[Task, list[Any]]):
        reward = none
        gateway: Gateway = need()

        def tasks(self, split: str) -> Any:
            yield Task(prompt="?")

        async def rollout(self, task: Task, agent: Any) -> list[Any]:
            async with self.gateway.endpoint(agent) as endpoint:
                request = request_of(ask("count", stop_sequences=["two"], tools=[ADDING]))
                count = endpoint.prompt_tokens(request)
                (answer,) = await endpoint.submit(request)
                return [count, answer.prompt, answer.stop]

    async def play() -> Any:
        async with Gateway() as gateway:
            environment = Outside(gateway=gateway)
            task = Task(prompt="?")
            return await asyncio.to_thread(run_episode, environment, task, "one two three")

    rollout = asyncio.run(play())
    assert rollout.termination.reason == ""
    count, prompt, stop = rollout.result
    assert count == prompt
    assert stop == "two"
    assert count > 0


def test_count_tokens_opens_no_conversation() -> None:
    async def run() -> None:
        async with client("four") as c:
            body = ask("2 + 2?", system="Be brief.", tools=[ADDING])
            status, count = await c.post("/messages/count_tokens", body)
            assert status == 200
            assert c.branches == {}
            assert c.endpoint.requests == 0
            _, answer = await c.post("/messages", body)
            assert count == {"input_tokens": answer["usage"]["input_tokens"]}

    asyncio.run(run())


def test_stream() -> None:
    text = "a rather long reply, in more parts than one, " * 4
    reply = Reply(text=text, reasoning="hm", calls=CALLS)

    async def run() -> None:
        async with client(reply) as c:
            more = {"tools": [ADDING], "thinking": {"type": "adaptive"}}
            body = ask("?", stream=True, **more) | {"max_tokens": 999}
            _, events = await c.post("/messages?beta=true", body)
            kinds = [e["type"] for e in events]
            assert kinds[:2] == ["message_start", "ping"]
            assert kinds[-2:] == ["message_delta", "message_stop"]
            start = events[0]["message"]
            assert start["content"] == []
            assert start["stop_reason"] is None
            blocks = [e["content_block"]["type"] for e in events if "content_block" in e]
            assert blocks == ["thinking", "text", "tool_use", "tool_use"]
            assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
            open_block = -1  # deltas come between the start and the stop of their block
            for event in events[2:-2]:
                if event["type"] == "content_block_start":
                    open_block += 1
                assert event["index"] == open_block
            deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
            assert "".join(d.get("text", "") for d in deltas) == text.strip()
            assert "".join(d.get("thinking", "") for d in deltas) == "hm"
            arguments = "".join(d.get("partial_json", "") for d in deltas)
            assert arguments == "".join(json.dumps(dict(call.arguments)) for call in CALLS)
            assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
            assert events[-2]["usage"]["output_tokens"] > 0

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["auto", "any", "tool", "none"])
def test_choices_of_tools(kind: str) -> None:
    choice = {"type": kind, "disable_parallel_tool_use": True}
    choice |= {"name": "add"} if kind == "tool" else {}

    async def run() -> None:
        async with client(CALL) as c:
            said = await send(c, "2 + 3?", tools=[ADDING], tool_choice=choice)
            assert said["stop_reason"] == ("end_turn" if kind == "none" else "tool_use")
        request = request_of(ask("?", tools=[ADDING], tool_choice=choice))
        assert request.must_call == {"any": "*", "tool": "add"}.get(kind, "")

    asyncio.run(run())


def test_a_turn_without_blocks_stays_a_turn() -> None:
    """An empty reply has no block; sent back, it continues its conversation."""

    async def run() -> None:
        async with client(["", "here"]) as c:
            said = await send(c, "a")
            assert said["content"] == []
            await send(c, "a", said["content"], "b")
            assert c.branches == {"thread-1": 1}
            assert text_of(c).count("<|im_start|>assistant") == 2

    asyncio.run(run())


def test_turns_of_one_role_are_joined() -> None:
    """As Anthropic's API does; templates that demand alternation would refuse them."""
    request = request_of(
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": t} for t in "bc"]},
                {"role": "assistant", "content": "d"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "1", "content": t} for t in "ef"
                    ],
                },
            ]
        }
    )
    shown = [(m.role, m.content, len(m.calls)) for m in request.messages]
    assert shown == [
        ("user", "a\n\nbc", 0),
        ("assistant", "d", 1),
        ("tool", "e", 0),
        ("tool", "f", 0),
    ]
    assert [m.name for m in request.messages[2:]] == ["f", "f"]


def test_a_schema_stands_in_the_system_message() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    request = request_of(ask("?", system="Add.", output_config=form))
    assert request.schema == schema
    assert json.dumps(schema) in request.messages[0].content
    assert json.loads(request.response_format)["json_schema"] == {"name": "reply", "schema": schema}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [7]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    (ask("x", "the answer is ("), "messages"),
    (ask([{"type": "image", "source": {}}]), "messages[0].content[0]"),
    (ask([{"type": "text", "text": "x"}, {"type": "text"}]), "messages[0].content[1]"),
    (ask([{"type": "tool_use", "id": "x", "name": "f", "input": {}}]), "messages[0].content[0]"),
    (ask("x", max_tokens=0), "max_tokens"),
    (ask("x", system=[{"type": "image"}]), "system[0]"),
    (ask("x", stop_sequences=[1]), "stop_sequences"),
    (ask("x", tools=[{"type": "web_search_20260209", "name": "w"}]), "tools[0]"),
    (ask("x", tools=[{"name": "f", "input_schema": []}]), "tools[0].input_schema"),
    (ask("x", tool_choice="auto"), "tool_choice"),
    (ask("x", tool_choice={"type": "maybe"}), "tool_choice"),
    (ask("x", mcp_servers=[{"url": "x"}]), "mcp_servers"),
    (ask("x", thinking="much"), "thinking"),
    (ask("x", output_config={"format": {"type": "xml"}}), "output_config.format"),
]


@pytest.mark.parametrize(
    ("body", "param"), WRONG, ids=[f"{i}-{p}" for i, (_, p) in enumerate(WRONG)]
)
def test_what_is_wrong_is_named_in_the_shape_of_this_api(body: dict[str, Any], param: str) -> None:
    async def run() -> None:
        async with client() as c:
            status, answer = await c.post("/messages", body)
            assert status == 400
            assert answer["type"] == "error"
            assert answer["error"]["type"] == "invalid_request_error"
            assert answer["error"]["details"]["param"] == param
            assert param in answer["error"]["message"]
            assert c.branches == {}

    asyncio.run(run())


def test_errors_by_status() -> None:
    async def run() -> None:
        engine = ScriptedEngine(replies="hi", context=300, fail_on=[1])
        async with client(engine=engine, max_bytes=5000) as c:
            found = {}
            for name, body, headers in (
                ("failed", ask("x"), {}),
                ("long", ask("x" * 400), {}),
                ("large", ask("x" * 6000), {}),
                ("key", ask("x"), {"Authorization": "Bearer wrong"}),
                ("none", ask("x"), {"Authorization": ""}),
                ("type", ask("x"), {"Content-Type": "text/plain"}),
            ):
                status, answer = await c.post("/messages", body, **headers)
                error = answer["error"]
                assert answer["type"] == "error"
                found[name] = (status, error["type"], error["details"]["error_code"])
            assert found == {
                "failed": (503, "overloaded_error", "engine_failure"),
                "long": (400, "invalid_request_error", "context_length_exceeded"),
                "large": (413, "request_too_large", "request_too_large"),
                "key": (401, "authentication_error", "invalid_api_key"),
                "none": (401, "authentication_error", "missing_api_key"),
                "type": (415, "invalid_request_error", "unsupported_media_type"),
            }
            _, answer = await c.post("/messages", ask("x" * 400))
            assert answer["error"]["message"].startswith("prompt is too long: ")
            status, answer = await c.post("/messages/batches", {})
            assert status == 404
            assert answer["error"]["type"] == "not_found_error"

    asyncio.run(run())


def test_the_key_may_come_in_either_header() -> None:
    async def run() -> None:
        async with client("hi") as c:
            key = c.endpoint.api_key
            for headers in (
                {"x-api-key": key, "Authorization": ""},
                {"x-api-key": key, "Authorization": "Basic x"},
                {"x-api-key": "", "Authorization": f"Bearer {key}"},
            ):
                for path, body in (
                    ("/messages", ask("x")),
                    ("/chat/completions", {"messages": ask("x")["messages"]}),
                ):
                    status, _ = await c.post(path, body, **headers)
                    assert status == 200
            status, _ = await c.post(
                "/messages", ask("x"), **{"x-api-key": "w", "Authorization": ""}
            )
            assert status == 401
            variables = c.endpoint.environment
            assert variables["ANTHROPIC_BASE_URL"] + "/v1" == variables["OPENAI_BASE_URL"]
            assert variables["ANTHROPIC_API_KEY"] == key

    asyncio.run(run())


def test_a_cancelled_request_is_sampled_again_in_its_place() -> None:
    async def run() -> None:
        engine = Slow()
        async with client(engine=engine) as c:
            task = asyncio.create_task(c.post("/messages", ask("x")))
            await until(lambda: engine.running)
            task.cancel()
            await until(lambda: not c.endpoint.busy)
            engine.go.set()
            assert (await send(c, "x"))["content"][0]["text"] == "late"
            assert list(c.branches.values()) == [1]
            assert [t.sampled for t in c.policy.transcripts().values()] == [5]

    asyncio.run(run())


def test_a_conversation_goes_on_from_one_api_to_another() -> None:
    """Threads are found by content, whatever API sent it."""

    async def run() -> None:
        async with client(["one", "two", "three"]) as c:
            await c.chat("a")
            await send(c, "a", "one", "b")
            await c.chat("a", "one", "b", "two", "c")
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "input", "id", "thinking"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = ["messages", "system", "tools", "tool_choice", "thinking", "stop_sequences"]


@given(st.dictionaries(st.sampled_from([*FIELDS, "output_config", "max_tokens"]), values))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_body_is_read_or_refused_by_name(body: dict[str, Any]) -> None:
    try:
        request = request_of(body)
    except ApiError as e:
        assert e.status == 400
        assert e.param
    else:
        assert request.messages
