"""The official `anthropic` client, which knows nothing of Quintain, against the gateway."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from quintain import Message, Reply, ToolCall
from quintain_authoring import ScriptedEngine

from .kit import ADD, CALL, Client, check_two_calls_in_a_thread, client

ADDING = {"name": "add", "input_schema": ADD["function"]["parameters"]}
ASK = [{"role": "user", "content": "2 + 3?"}]


@pytest.fixture(scope="module")
def anthropic() -> Any:
    """The package; its import takes seconds, which a process that only collects does not spend."""
    return pytest.importorskip(
        "anthropic", reason="the client of Anthropic is not installed (extra dev)"
    )


def arguments(c: Client) -> dict[str, Any]:
    return {"base_url": c.endpoint.base_url.removesuffix("/v1"), "api_key": c.endpoint.api_key}


def solve(ai: Any, stream: bool) -> str:
    """The loop of an agent, which sends back what it got."""
    messages: list[Any] = list(ASK)
    for _ in range(5):
        common: Any = {"model": "claude", "max_tokens": 500, "system": "Add.", "tools": [ADDING]}
        if stream:
            with ai.messages.stream(messages=messages, **common) as events:
                said = events.get_final_message()
        else:
            said = ai.messages.create(messages=messages, **common)
        messages.append({"role": "assistant", "content": said.content})
        if said.stop_reason != "tool_use":
            return str(said.content[0].text)
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": str(sum(block.input.values())),
            }
            for block in said.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    raise AssertionError


@pytest.mark.parametrize("stream", [False, True])
def test_sync_client_in_a_thread(anthropic: Any, stream: bool) -> None:
    def agent(c: Client) -> str:
        with anthropic.Anthropic(**arguments(c)) as ai:
            return solve(ai, stream)

    check_two_calls_in_a_thread(agent)


def test_async_client_with_everything_it_can_ask(anthropic: Any) -> None:
    async def run() -> None:
        async with client(["four", "five"]) as c, anthropic.AsyncAnthropic(**arguments(c)) as ai:
            models = await ai.models.list()
            assert [m.id for m in models.data] == ["default"]
            assert (await ai.models.retrieve("any/name")).display_name == "any/name"
            mark = {"cache_control": {"type": "ephemeral"}}
            common: Any = {
                "model": "claude",
                "system": [{"type": "text", "text": "Be brief.", **mark}],
                "tools": [ADDING | mark],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
                "thinking": {"type": "adaptive"},
            }
            count = await ai.messages.count_tokens(messages=ASK, **common)
            answer = await ai.messages.create(
                messages=ASK,
                max_tokens=50,
                stop_sequences=["."],
                metadata={"user_id": "me"},
                service_tier="auto",
                extra_body={"temperature": 0.5, "top_k": 5},
                **common,
            )
            assert answer.usage.input_tokens == count.input_tokens
            assert [b.text for b in answer.content] == ["four"]
            history = [*ASK, answer.to_param(), {"role": "user", "content": "+ 1?"}]
            answer = await ai.messages.create(messages=history, max_tokens=50, **common)
            assert answer.content[0].text == "five"
            assert answer.stop_reason == "end_turn"
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_streaming_client(anthropic: Any) -> None:
    """The client puts the events together to what the same reply is unstreamed."""
    reply = Reply(text="It is " + "5" * 50, reasoning="hm, 3", calls=CALL.calls)

    async def run() -> None:
        async with client(reply) as c, anthropic.AsyncAnthropic(**arguments(c)) as ai:
            common: Any = {
                "model": "claude",
                "max_tokens": 500,
                "messages": ASK,
                "tools": [ADDING],
                "thinking": {"type": "adaptive"},
            }
            async with ai.messages.stream(**common) as stream:
                kinds = {event.type async for event in stream}
                streamed = await stream.get_final_message()
            whole = await ai.messages.create(**common)
            assert {"thinking", "signature", "text", "input_json", "message_stop"} <= kinds
            shown: list[Any] = [
                [
                    b.model_dump(include={"type", "text", "thinking", "signature", "name", "input"})
                    for b in message.content
                ]
                for message in (streamed, whole)
            ]
            assert shown[0] == shown[1]
            assert [b["type"] for b in shown[0]] == ["thinking", "text", "tool_use"]
            assert streamed.stop_reason == whole.stop_reason
            assert streamed.usage == whole.usage
            raw = await ai.messages.create(**common, stream=True)
            assert [event.type async for event in raw][-1] == "message_stop"

    asyncio.run(run())


def test_parsed_outputs(anthropic: Any) -> None:
    from pydantic import BaseModel

    class Sum(BaseModel):
        total: int

    async def run() -> None:
        async with client('{"total": 5}') as c, anthropic.AsyncAnthropic(**arguments(c)) as ai:
            answer = await ai.messages.parse(
                model="m", max_tokens=50, messages=ASK, output_format=Sum
            )
            assert answer.parsed_output == Sum(total=5)

    asyncio.run(run())


def test_the_client_repeats_a_failed_request_by_itself_and_stops_at_a_limit(anthropic: Any) -> None:
    async def run() -> None:
        engine = ScriptedEngine(replies="hi", fail_on=[1, 2], context=400)
        async with client(engine=engine) as c, anthropic.AsyncAnthropic(**arguments(c)) as ai:
            common: Any = {"model": "m", "max_tokens": 50}
            answer = await ai.messages.create(messages=ASK, **common)
            assert answer.content[0].text == "hi"
            assert c.endpoint.failure is None
            before = c.endpoint.requests
            long = [{"role": "user", "content": "x" * 500}]
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
                await ai.messages.create(messages=long, **common)
            assert refused.value.error_code == "context_length_exceeded"
            assert c.endpoint.requests == before + 1
            with pytest.raises(anthropic.AuthenticationError) as denied:
                await ai.with_options(api_key="wrong").messages.create(messages=ASK, **common)
            assert denied.value.type == "authentication_error"

    asyncio.run(run())


def test_the_key_as_a_bearer_token(anthropic: Any) -> None:
    async def run() -> None:
        async with client("hi") as c:
            given = arguments(c)
            token = given.pop("api_key")
            async with anthropic.AsyncAnthropic(auth_token=token, **given) as ai:
                answer = await ai.messages.create(model="m", max_tokens=9, messages=ASK)
                assert answer.content[0].text == "hi"

    asyncio.run(run())


@pytest.mark.ci
def test_a_coding_agent_runs_unchanged(tmp_path: Path) -> None:
    """Claude Code (npm: `@anthropic-ai/claude-code`) reads a file with its own tool."""
    program = shutil.which("claude")
    if program is None:
        pytest.skip("the program `claude` is not installed")
    (tmp_path / "number.txt").write_text("42")

    def reply(messages: list[Message]) -> Reply | str:
        if "<tool_response>\n42" in messages[-1].content:
            return "The file says 42."
        command = {"command": "cat number.txt", "description": "Read the file"}
        return Reply(text="I read.", calls=(ToolCall(name="Bash", arguments=command),))

    async def run() -> None:
        async with client(engine=ScriptedEngine(replies=reply, context=1 << 20)) as c:
            variables = {
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                **c.endpoint.environment,
            }
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                program, "-p", "What number is in number.txt?", "--allowedTools", "Bash",
                cwd=tmp_path, env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=pipe,
            )  # fmt: skip
            output, _ = await process.communicate()
            assert process.returncode == 0
            assert output.decode().strip() == "The file says 42."
            assert list(c.branches.values()) == [1]
            (transcript,) = c.policy.transcripts().values()
            assert transcript.sampled == sum(sum(s.mask) for s in transcript.sequences())

    asyncio.run(run())


def test_threads_are_refused_by_the_code_that_clients_know() -> None:
    """A client that asked the server to keep its messages sends all of them instead."""

    async def run() -> None:
        async with client(["hello"]) as c:
            body = {
                "model": "m",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "hi"}],
                "thread": {"type": "create"},
            }
            status, said = await c.post("/messages", body)
            assert status == 400
            assert said["error"]["details"]["error_code"] == "thread_unsupported_request"
            status, _ = await c.post("/messages", body | {"thread": None})
            assert status == 200

    asyncio.run(run())
