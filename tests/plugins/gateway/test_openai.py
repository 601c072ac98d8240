"""The official `openai` client, which knows nothing of Quintain, against the gateway."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from quintain_authoring import ScriptedEngine

from .kit import ADD, CALL, Client, check_two_calls_in_a_thread, client


@pytest.fixture(scope="module")
def openai() -> Any:
    """The client, whose import takes seconds."""
    reason = "the client of OpenAI is not installed (extra dev)"
    return pytest.importorskip("openai", reason=reason)


ASK = [{"role": "user", "content": "2 + 3?"}]


def arguments(c: Client) -> dict[str, Any]:
    return {"base_url": c.endpoint.base_url, "api_key": c.endpoint.api_key}


def test_sync_client_in_a_thread(openai: Any) -> None:
    def agent(c: Client) -> str:
        with openai.OpenAI(**arguments(c)) as ai:
            messages: list[Any] = list(ASK)
            for _ in range(5):
                said = (
                    ai.chat.completions.create(model="gpt-4o", messages=messages, tools=[ADD])
                    .choices[0]
                    .message
                )
                messages.append(said)
                if not said.tool_calls:
                    return str(said.content)
                for call in said.tool_calls:
                    total = sum(json.loads(call.function.arguments).values())
                    messages.append(
                        {"role": "tool", "tool_call_id": call.id, "content": str(total)}
                    )
        raise AssertionError

    check_two_calls_in_a_thread(agent)


def test_async_client_with_everything_it_can_ask(openai: Any) -> None:
    async def run() -> None:
        async with client("four") as c, openai.AsyncOpenAI(**arguments(c)) as ai:
            assert [m.id async for m in ai.models.list()] == ["default"]
            answer = await ai.chat.completions.create(
                model="gpt-4o",
                messages=[{"role": "developer", "content": "Be brief."}, *ASK],
                logprobs=True,
                top_logprobs=2,
                n=2,
                seed=5,
                temperature=0.5,
                max_completion_tokens=10,
                stop=["."],
                tools=[ADD],
                tool_choice="auto",
                response_format={"type": "text"},
                user="me",
                metadata={"a": "b"},
                parallel_tool_calls=True,
            )
            assert [ch.message.content for ch in answer.choices] == ["four", "four"]
            content = answer.choices[0].logprobs.content
            assert "".join(t.token for t in content) == "four<|im_end|>"
            assert all(t.logprob < 0 for t in content)

    asyncio.run(run())


def test_streaming_client(openai: Any) -> None:
    async def run() -> None:
        async with (
            client([CALL, "It is " + "5" * 50]) as c,
            openai.AsyncOpenAI(**arguments(c)) as ai,
        ):
            async with ai.chat.completions.stream(model="m", messages=ASK, tools=[ADD]) as stream:
                async for _ in stream:
                    pass
                said = (await stream.get_final_completion()).choices[0].message
            assert json.loads(said.tool_calls[0].function.arguments) == {"x": 2, "y": 3}
            result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "5"}
            history = [
                *ASK,
                said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
                result,
            ]
            chunks = await ai.chat.completions.create(
                model="m", messages=history, tools=[ADD], stream=True
            )
            text = "".join([ch.choices[0].delta.content or "" async for ch in chunks])
            assert text == "It is " + "5" * 50
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_responses_client_plain_and_streaming(openai: Any) -> None:
    tool = {"type": "function", "strict": False, **ADD["function"]}

    async def run() -> None:
        async with client([CALL, "5", "6"]) as c, openai.AsyncOpenAI(**arguments(c)) as ai:
            first = await ai.responses.create(
                model="m", instructions="Add.", input="2 + 3?", tools=[tool]
            )
            call = first.output[1]
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            history = [*ASK, *(item.model_dump(exclude_none=True) for item in first.output), result]
            second = await ai.responses.create(
                model="m", instructions="Add.", input=history, tools=[tool]
            )
            assert second.output_text == "5"
            async with ai.responses.stream(
                model="m",
                instructions="Add.",
                input="next",
                previous_response_id=second.id,
                tools=[tool],
            ) as stream:
                kinds = [event.type async for event in stream]
                third = await stream.get_final_response()
            assert third.output_text == "6"
            assert kinds[-1] == "response.completed"
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_parsed_outputs_of_both_apis(openai: Any) -> None:
    """`parse` of the client sends a schema; what the policy wrote unforced is read by the
    client.
    """

    class Sum(BaseModel):
        total: int

    async def run() -> None:
        async with client('{"total": 5}') as c, openai.AsyncOpenAI(**arguments(c)) as ai:
            chat = await ai.chat.completions.parse(model="m", messages=ASK, response_format=Sum)
            assert Sum(total=5) == chat.choices[0].message.parsed
            response = await ai.responses.parse(model="m", input="2 + 3?", text_format=Sum)
            assert Sum(total=5) == response.output_parsed
            assert response.id == (await ai.responses.retrieve(response.id)).id
            assert (await ai.models.retrieve("gpt-4o")).id == "gpt-4o"

    asyncio.run(run())


def test_the_client_repeats_a_failed_request_by_itself_and_stops_at_a_limit(openai: Any) -> None:
    async def run() -> None:
        engine = ScriptedEngine(replies="hi", fail_on=[1, 2], context=400)
        async with client(engine=engine) as c, openai.AsyncOpenAI(**arguments(c)) as ai:
            answer = await ai.chat.completions.create(model="m", messages=ASK)
            assert answer.choices[0].message.content == "hi"
            assert c.endpoint.failure is None
            before = c.endpoint.requests
            with pytest.raises(openai.BadRequestError) as refused:
                await ai.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x" * 500}]
                )
            assert refused.value.code == "context_length_exceeded"
            assert c.endpoint.requests == before + 1
            with pytest.raises(openai.AuthenticationError):
                await ai.with_options(api_key="wrong").chat.completions.create(
                    model="m", messages=ASK
                )

    asyncio.run(run())


def test_clients_of_many_threads_at_once(openai: Any) -> None:
    """Sixteen threads with a client each; the engine answers them in its own loop."""

    async def run() -> None:
        async with client(lambda messages: f"to {messages[-1].content}") as c:
            seen: dict[int, str] = {}

            def agent(number: int) -> None:
                with openai.OpenAI(**arguments(c)) as ai:
                    ask: Any = [{"role": "user", "content": f"thread {number}"}]
                    seen[number] = str(
                        ai.chat.completions.create(model="m", messages=ask)
                        .choices[0]
                        .message.content
                    )

            threads = [threading.Thread(target=agent, args=(i,)) for i in range(16)]
            for thread in threads:
                thread.start()
            await asyncio.gather(*(asyncio.to_thread(t.join) for t in threads))
            assert seen == {i: f"to thread {i}" for i in range(16)}
            assert len(c.branches) == 16

    asyncio.run(run())
