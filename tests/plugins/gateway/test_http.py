"""The gateway's HTTP: OpenAI's APIs, keys, limits, errors, cancellation."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quintain import InfrastructureError, Message, Reply, Sampling
from quintain.errors import UsageError
from quintain.types.transcript import TokenSource
from quintain_authoring import ScriptedEngine
from quintain_gateway import Gateway
from quintain_gateway.engine_policy import EnginePolicy
from quintain_gateway.fields import parsed

from .kit import ADD, CALL, Slow, client, talk, until

SUM = {"type": "json_schema", "name": "sum", "schema": {"type": "object", "required": ["total"]}}


def test_chat_completion() -> None:
    async def run() -> None:
        async with client("four") as c:
            status, body = await c.post(
                "/chat/completions", {"model": "any", "messages": talk("2 + 2?")}
            )
            assert status == 200
            assert body["object"] == "chat.completion"
            assert body["model"] == "any"
            (choice,) = body["choices"]
            assert choice["message"] == {"role": "assistant", "content": "four", "refusal": None}
            assert choice["index"] == 0
            assert choice["finish_reason"] == "stop"
            (transcript,) = c.policy.transcripts().values()
            ids = transcript.path(0).ids
            # four letters and the end
            assert body["usage"]["completion_tokens"] == transcript.sampled == 5
            assert body["usage"]["prompt_tokens"] == len(ids) - 5

    asyncio.run(run())


def test_tool_calls_and_results_are_one_conversation_whose_tokens_are_kept() -> None:
    async def run() -> None:
        async with client([CALL, "5"]) as c:
            said = await c.chat("2 + 3?", tools=[ADD])
            assert said["content"] == "I add."
            (call,) = said["tool_calls"]
            assert call["type"] == "function"
            assert call["function"]["name"] == "add"
            assert json.loads(call["function"]["arguments"]) == {"x": 2, "y": 3}
            first = next(iter(c.policy.transcripts().values())).path(0)
            result = {"role": "tool", "tool_call_id": call["id"], "content": "5"}
            assert (await c.chat("2 + 3?", said, result, tools=[ADD]))["content"] == "5"
            (transcript,) = c.policy.transcripts().values()
            assert len(transcript.branches) == 1
            path = transcript.path(0)
            assert path.ids[: len(first.ids)] == first.ids
            assert path.sources[: len(first.ids)] == first.sources
            trained = {
                i
                for s in transcript.sequences()
                for i, m in zip(range(len(s.mask)), s.mask, strict=True)
                if m
            }
            assert len(trained) == transcript.sampled
            assert 3 in path.sources  # the tool's text, which is context

    asyncio.run(run())


def test_arguments_may_come_back_in_another_form() -> None:
    """Agents print arguments again, leave content out, give ids of their own, and drop
    reasoning.
    """

    async def run() -> None:
        thinking = Reply(text="", reasoning="hm", calls=CALL.calls)
        async with client([thinking, "5"]) as c:
            said = await c.chat("2 + 3?", tools=[ADD])
            assert said["reasoning_content"] == "hm"
            assert said["content"] is None
            again = {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "mine",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{ "y":3, "x":2 }'},
                    }
                ],
            }
            result = {
                "role": "tool",
                "tool_call_id": "mine",
                "content": [{"type": "text", "text": "5"}],
            }
            await c.chat("  2 + 3?\n", again, result, tools=[ADD])
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_the_policy_reads_why_one_of_its_calls_was_lost() -> None:
    """An unreadable call beside a readable one gets its error as a result; no recorded token
    changes.
    """
    good = '<tool_call>\n{"name": "add", "arguments": {"x": 2, "y": 3}}\n</tool_call>'
    written = f"<tool_call>\n{{nonsense\n</tool_call>\n{good}"

    async def run() -> None:
        async with client([written, "5", "6"]) as c:
            reply = await c.chat("2 + 3?", tools=[ADD])
            (call,) = reply["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "five"}
            talked = ["2 + 3?", reply, result]
            talked.append(await c.chat(*talked, tools=[ADD]))
            await c.chat(*talked, "and?", tools=[ADD])
            await c.chat("2 + 3?", reply, result, talked[-1], "or?", tools=[ADD])  # a fork

        assert c.branches == {"thread-1": 1, "thread-2": 1}
        for transcript in c.policy.transcripts().values():
            path = transcript.path(0)
            text = c.policy.engine.tokenizer.decode(path.ids)
            assert text.index(written) < text.index("error: not JSON") < text.index("five")
        sampled = [i for i, s in zip(path.ids, path.sources, strict=True) if s == TokenSource.COPY]
        assert c.policy.engine.tokenizer.decode(sampled) == written + "<|im_end|>5<|im_end|>"

    asyncio.run(run())


STRICT_SUM = {
    "name": "sum",
    "strict": True,
    "schema": {"type": "object", "properties": {"total": {"type": "integer"}}},
}
SCHEMA = json.dumps(STRICT_SUM["schema"])
ANY_JSON = {"type": "json_object"}


def prompt_of_chat(form: dict[str, Any]) -> str:
    """What the policy read of two turns of chat completions that ask for *form*."""
    asked = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 3?"}]

    async def run() -> str:
        async with client(['{"total": 5}', '{"total": 6}']) as c:
            said = await c.chat(*asked, response_format=form)
            more = {"role": "user", "content": "+ 1?"}
            await c.chat(*asked, said, more, response_format=form)
            return text_of_one_branch(c)

    return asyncio.run(run())


def prompt_of_responses(form: dict[str, Any]) -> str:
    """What the policy read of two responses that ask for *form*."""
    body = {"text": {"format": form}, "instructions": "Add."}

    async def run() -> str:
        async with client(['{"total": 5}', '{"total": 6}']) as c:
            _, first = await c.post("/responses", body | {"input": "2 + 3?"})
            more = body | {"input": "+ 1?", "previous_response_id": first["id"]}
            status, second = await c.post("/responses", more)
            assert status == 200
            assert second["text"]["format"] == form
            assert second["output"][0]["content"][0]["text"] == '{"total": 6}'
            return text_of_one_branch(c)

    return asyncio.run(run())


def text_of_one_branch(c: Any) -> str:
    """The text of the only conversation, which has one branch."""
    assert list(c.branches.values()) == [1]
    (transcript,) = c.policy.transcripts().values()
    return str(c.policy.engine.tokenizer.decode(transcript.path(0).ids))


@pytest.mark.parametrize(
    "prompt, form",
    [
        (prompt_of_chat, {"type": "json_schema", "json_schema": STRICT_SUM}),
        (prompt_of_responses, {"type": "json_schema"} | STRICT_SUM),
    ],
)
def test_a_schema_is_asked_for_in_the_prompt(
    prompt: Callable[[dict[str, Any]], str], form: dict[str, Any]
) -> None:
    """It stands in the system message, where the policy reads it; a conversation stays one
    branch.
    """
    text = prompt(form)

    assert text.startswith("<|im_start|>system\nAdd.")
    assert SCHEMA in text


@pytest.mark.parametrize("prompt", [prompt_of_chat, prompt_of_responses])
def test_any_json_object_is_asked_for_without_a_schema(
    prompt: Callable[[dict[str, Any]], str],
) -> None:
    text = prompt(ANY_JSON)

    assert text.startswith("<|im_start|>system\nAdd.")
    assert SCHEMA not in text


def test_a_schema_that_is_missing_is_refused() -> None:
    async def run() -> None:
        async with client("{}") as c:
            body = {
                "messages": talk("?"),
                "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
            }
            status, answer = await c.post("/chat/completions", body)
            assert status == 400
            assert answer["error"]["param"] == "response_format.json_schema.schema"

    asyncio.run(run())


def test_models_and_responses_by_their_id() -> None:
    async def run() -> None:
        async with client("four") as c:
            _, given = await c.post("/responses", {"input": "2 + 2?", "stream": True})
            whole = given[-1]["response"]
            head = {"Authorization": f"Bearer {c.endpoint.api_key}"}
            found = {}
            for path in (
                f"/responses/{whole['id']}",
                "/responses/resp_other",
                "/models/owner/name",
            ):
                async with c.http.get(c.endpoint.base_url + path, headers=head) as answer:
                    found[path] = (answer.status, await answer.json())
        same, other, model = found.values()
        assert (200, whole) == same
        assert other[0] == 404
        assert other[1]["error"]["code"] == "response_not_found"
        assert model[0] == 200
        assert model[1]["id"] == "owner/name"
        assert model[1]["object"] == "model"

    asyncio.run(run())


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "add"}}]
)
def test_choices_of_tools_that_let_it_choose(choice: Any) -> None:
    async def run() -> None:
        async with client(CALL) as c:
            assert (await c.chat("2 + 3?", tools=[ADD], tool_choice=choice))["tool_calls"]

    asyncio.run(run())


def test_calls_that_are_not_allowed_or_not_readable_stay_text() -> None:
    async def run() -> None:
        async with client([CALL, "<tool_call>\n{nonsense\n</tool_call>"]) as c:
            said = await c.chat("2 + 3?", tools=[ADD], tool_choice="none")
            assert "tool_calls" not in said
            assert '"name": "add"' in said["content"]
            said = await c.chat("2 + 3?", said, "And now?", tools=[ADD])
            content = "<tool_call>\n{nonsense\n</tool_call>"
            assert said == {"role": "assistant", "content": content, "refusal": None}

    asyncio.run(run())


def test_stream_of_chat() -> None:
    async def run() -> None:
        text = "a rather long reply, in more parts than one, " * 4
        long_call = Reply(text=text, calls=CALL.calls)
        async with client(long_call) as c:
            body = {
                "messages": talk("?"),
                "stream": True,
                "stream_options": {"include_usage": True},
                "tools": [ADD],
            }
            _, chunks = await c.post("/chat/completions", body)
            assert {ch["object"] for ch in chunks} == {"chat.completion.chunk"}
            assert len({ch["id"] for ch in chunks}) == 1
            deltas = [ch["choices"][0]["delta"] for ch in chunks[:-1]]
            assert deltas[0]["role"] == "assistant"
            parts = [d["content"] for d in deltas if d.get("content")]
            assert "".join(parts) == text.strip()
            assert len(parts) > 2
            calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
            assert json.loads("".join(x["function"]["arguments"] for x in calls)) == {
                "x": 2,
                "y": 3,
            }
            assert [ch["choices"][0]["finish_reason"] for ch in chunks[:-1]][-1] == "tool_calls"
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"]["completion_tokens"] > 0

    asyncio.run(run())


def test_log_probs_and_ids_are_those_of_the_record() -> None:
    async def run() -> None:
        async with client("abc") as c:
            body = {
                "messages": talk("?"),
                "logprobs": True,
                "top_logprobs": 3,
                "return_token_ids": True,
            }
            _, answer = await c.post("/chat/completions", body)
            (transcript,) = c.policy.transcripts().values()
            path = transcript.path(0)
            choice = answer["choices"][0]
            rows = choice["logprobs"]["content"]
            assert tuple(answer["prompt_token_ids"]) + tuple(choice["token_ids"]) == path.ids
            assert [r["logprob"] for r in rows] == list(path.logps[-4:])
            assert [r["token"] for r in rows] == ["a", "b", "c", "<|im_end|>"]
            assert rows[0]["bytes"] == [97]
            assert [len(r["top_logprobs"]) for r in rows] == [1] * 4
            assert choice["weight_version"] == 0

    asyncio.run(run())


def test_limits_and_stops_of_a_request() -> None:
    async def run() -> None:
        async with client("one two three") as c:
            _, answer = await c.post(
                "/chat/completions", {"messages": talk("?"), "max_completion_tokens": 3}
            )
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["choices"][0]["message"]["content"] == "one"
            assert (await c.chat("??", stop=" tw"))["content"] == "one"
            assert (await c.chat("???", stop=["x", "three"]))["content"] == "one two"

    asyncio.run(run())


def test_n_replies_are_conversations_of_their_own() -> None:
    async def run() -> None:
        async with client(lambda messages, rng: f"number {rng.random()}") as c:
            _, answer = await c.post("/chat/completions", {"messages": talk("?"), "n": 3})
            texts = [ch["message"]["content"] for ch in answer["choices"]]
            assert len(set(texts)) == 3
            assert [ch["index"] for ch in answer["choices"]] == [0, 1, 2]
            assert len(c.branches) == 3
            await c.chat("?", texts[1], "and?")  # continues the second
            assert len(c.branches) == 3

    asyncio.run(run())


RESPONSE_TOOL = {"type": "function", **ADD["function"]}


def test_responses_with_tools() -> None:
    async def run() -> None:
        async with client([CALL, "5"]) as c:
            ask = {"role": "user", "content": [{"type": "input_text", "text": "2 + 3?"}]}
            body = {"model": "m", "instructions": "Add.", "input": [ask], "tools": [RESPONSE_TOOL]}
            status, answer = await c.post("/responses", body)
            assert status == 200
            assert answer["object"] == "response"
            assert answer["status"] == "completed"
            message, call = answer["output"]
            assert message["content"][0]["text"] == "I add."
            assert call["type"] == "function_call"
            assert call["name"] == "add"
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
            status, answer = await c.post(
                "/responses", body | {"input": [ask, message, call, result]}
            )
            assert answer["output"][0]["content"][0]["text"] == "5"
            assert answer["usage"]["input_tokens"] > answer["usage"]["output_tokens"] == 2
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_responses_by_previous_id_and_cut_short() -> None:
    async def run() -> None:
        async with client(["one two", "three"]) as c:
            _, first = await c.post("/responses", {"input": "count", "max_output_tokens": 3})
            assert first["status"] == "incomplete"
            assert first["incomplete_details"] == {"reason": "max_output_tokens"}
            body = {"input": "more", "previous_response_id": first["id"]}
            _, second = await c.post("/responses", body)
            assert second["output"][0]["content"][0]["text"] == "three"
            assert list(c.branches.values()) == [1]
            status, error = await c.post(
                "/responses", {"input": "more", "previous_response_id": "resp_0"}
            )
            assert status == 404
            assert error["error"]["code"] == "previous_response_not_found"

    asyncio.run(run())


@pytest.mark.parametrize("instructions", [{}, {"instructions": "Add."}], ids=["without", "with"])
@pytest.mark.parametrize("form", [{}, {"text": {"format": SUM}}], ids=["text", "schema"])
def test_a_system_message_of_the_input_stays_in_the_history(
    form: dict[str, Any], instructions: dict[str, Any]
) -> None:
    """Only `instructions` and the schema are left out of it: each request sends them again."""
    ask = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]

    async def run() -> None:
        async with client(['{"total": 5}', '{"total": 6}']) as c:
            _, first = await c.post("/responses", {"input": ask, **form, **instructions})
            body = {"input": "+ 1?", "previous_response_id": first["id"], **form, **instructions}
            status, _ = await c.post("/responses", body)
            assert status == 200
            assert list(c.branches.values()) == [1]
            (transcript,) = c.policy.transcripts().values()
            text = c.policy.engine.tokenizer.decode(transcript.path(0).ids)
        # this template shows the first system message alone
        shown = "Add." if instructions else "Be brief."
        assert text.count(shown) == 1
        assert int(bool(form)) == text.count("fits this schema")

    asyncio.run(run())


def test_stream_of_responses() -> None:
    async def run() -> None:
        async with client(Reply(text="I add. " * 9, reasoning="hm", calls=CALL.calls)) as c:
            _, events = await c.post(
                "/responses", {"input": "?", "tools": [RESPONSE_TOOL], "stream": True}
            )
            assert [e["sequence_number"] for e in events] == list(range(len(events)))
            names = [e["type"].removeprefix("response.") for e in events]
            assert names[:2] == ["created", "in_progress"]
            assert names[-1] == "completed"
            assert names.count("output_item.added") == names.count("output_item.done") == 3
            text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
            assert (
                text
                == events[-1]["response"]["output"][1]["content"][0]["text"]
                == ("I add. " * 9).strip()
            )
            arguments = "".join(e["delta"] for e in events if e["type"].endswith("arguments.delta"))
            assert json.loads(arguments) == {"x": 2, "y": 3}

    asyncio.run(run())


@pytest.mark.parametrize(
    "body, code, param",
    [
        (b"{", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        (b"\xff", "invalid_json", None),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hello"}, "invalid_type", "messages"),
        ({"messages": [5]}, "invalid_type", "messages[0]"),
        ({"messages": [{"role": "king", "content": "?"}]}, "invalid_value", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "unsupported_parameter",
            None,
        ),
        ({"messages": talk("?"), "n": 0}, "invalid_value", "n"),
        ({"messages": talk("?"), "n": 10**9}, "invalid_value", "n"),
        ({"messages": talk("?"), "n": True}, "invalid_type", "n"),
        ({"messages": talk("?"), "max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"messages": talk("?"), "temperature": 3}, "invalid_value", "temperature"),
        ({"messages": talk("?"), "top_logprobs": 99}, "invalid_value", "top_logprobs"),
        ({"messages": talk("?"), "stop": [1]}, "invalid_value", "stop"),
        (
            {"messages": talk("?"), "tools": [{"type": "web_search"}]},
            "unsupported_parameter",
            "tools[0]",
        ),
        ({"messages": talk("?"), "tools": [ADD, ADD]}, "invalid_value", "tools"),
        ({"messages": talk("?"), "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
        (
            {
                "messages": talk("?"),
                "tools": [{"type": "function", "function": {"name": "f", "parameters": []}}],
            },
            "invalid_type",
            "tools[0].function.parameters",
        ),
        ({"messages": talk("?"), "functions": [{}]}, "unsupported_parameter", "functions"),
        ({"messages": talk("?"), "logit_bias": {"5": 3}}, "unsupported_parameter", "logit_bias"),
        (
            {"messages": talk("?"), "response_format": {"type": "grammar"}},
            "unsupported_parameter",
            "response_format",
        ),
    ],
)
def test_wrong_requests_are_refused_with_the_field(body: Any, code: str, param: str | None) -> None:
    async def run() -> None:
        async with client() as c:
            status, answer = await c.post("/chat/completions", body)
            assert status == 400
            error = answer["error"]
            assert error["code"] == code
            assert error["type"] == "invalid_request_error"
            assert param is None or error["param"] == param
            assert c.endpoint.threads == 0
            assert (await c.chat("?"))["content"] == "hi"

    asyncio.run(run())


@pytest.mark.parametrize(
    "field",
    [
        {"top_logprobs": 99},
        {"temperature": 3},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "maybe"},
        {"model": 5},
        {"stream": "yes"},
    ],
)
def test_both_apis_refuse_what_they_share_with_the_same_error(field: dict[str, Any]) -> None:
    """A field that both APIs have is read once: its error does not depend on the API."""

    async def run() -> None:
        async with client() as c:
            chat = await c.post("/chat/completions", {"messages": talk("?"), **field})
            responses = await c.post("/responses", {"input": "?", **field})
            assert responses == chat
            assert responses[0] == 400

    asyncio.run(run())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "role content type text tool_calls function name arguments id call_id output".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=9,
)
FIELDS = st.sampled_from(
    "messages input tools tool_choice n max_tokens stop stream logprobs top_logprobs instructions "
    "text include response_format stream_options temperature seed previous_response_id "
    "model".split()
)


def test_no_body_is_an_internal_error() -> None:
    """Whatever a request holds, the answer is a reply or a refusal that names the fault, and
    nothing is in flight.
    """

    async def run(bodies: list[tuple[str, dict[str, Any]]]) -> None:
        async with client() as c:
            for path, body in bodies:
                status, answer = await c.post(path, {"messages": talk("?"), "input": "?"} | body)
                assert status in (200, 400, 404), answer
                assert status == 200 or answer["error"]["message"]
                assert not c.endpoint.busy

    bodies = st.tuples(
        st.sampled_from(["/chat/completions", "/responses"]),
        st.dictionaries(FIELDS, JSON, max_size=4),
    )

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(bodies, min_size=5, max_size=10))
    def fuzz(bodies: list[tuple[str, dict[str, Any]]]) -> None:
        asyncio.run(run(bodies))

    fuzz()


def test_lone_surrogates_become_question_marks() -> None:
    assert parsed(b'{"a": "x\\ud800y"}') == {"a": "x?y"}


def test_keys_media_types_urls_and_sizes() -> None:
    async def run() -> None:
        async with client(max_bytes=1000) as c:
            body = {"messages": talk("?")}
            for head, status, code in [
                ({"Authorization": "Bearer wrong"}, 401, "invalid_api_key"),
                ({"Authorization": ""}, 401, "missing_api_key"),
                ({"Authorization": f"Basic {c.endpoint.api_key}"}, 401, "missing_api_key"),
                ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
            ]:
                answer = await c.post("/chat/completions", body, **head)
                assert answer[0] == status
                assert answer[1]["error"]["code"] == code
            # A proxy between may have put a key of its own into one of the two headers.
            key = c.endpoint.api_key
            pairs = [
                ("Bearer EMPTY", key, 200),
                (f"Bearer {key}", "x", 200),
                ("Bearer x", "y", 401),
            ]
            for bearer, other, status in pairs:
                head = {"Authorization": bearer, "x-api-key": other}
                async with c.http.get(c.endpoint.base_url + "/models", headers=head) as models:
                    assert models.status == status
            status, answer = await c.post("/chat/completions", {"messages": talk("?" * 2000)})
            assert status == 413
            assert answer["error"]["code"] == "request_too_large"
            status, answer = await c.post("/completions", body)
            assert status == 404
            assert answer["error"]["code"] == "unknown_url"
            head = {"Authorization": f"Bearer {c.endpoint.api_key}"}
            async with c.http.get(c.endpoint.base_url + "/models", headers=head) as models:
                assert [m["id"] for m in (await models.json())["data"]] == ["default"]
            assert len(c.endpoint.api_key) >= 22  # 128 bits
            assert c.endpoint.threads == 0

    asyncio.run(run())


def test_only_the_loopback_interface_is_served_by_default() -> None:
    with pytest.raises(UsageError, match="other machines reach"):
        Gateway(host="0.0.0.0")
    Gateway(host="0.0.0.0", remote=True)

    async def run() -> None:
        async with client() as c:
            assert re.match(r"http://127\.0\.0\.1:\d+/v1\Z", c.endpoint.base_url)
            assert c.endpoint.environment["OPENAI_BASE_URL"] == c.endpoint.base_url
            assert c.endpoint.environment["OPENAI_API_KEY"] == c.endpoint.api_key

    asyncio.run(run())


def test_a_port_in_use_is_an_infrastructure_error() -> None:
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(InfrastructureError, match="cannot listen"):
                async with Gateway(port=taken.getsockname()[1]):
                    pass

    asyncio.run(run())


def test_a_failed_turn_is_an_error_that_clients_retry_and_a_retry_repairs_it() -> None:
    async def run() -> None:
        async with client(engine=ScriptedEngine(replies="hi", fail_on=[1])) as c:
            body = {"messages": talk("?")}
            head = {"Authorization": f"Bearer {c.endpoint.api_key}"}
            async with c.http.post(
                c.endpoint.base_url + "/chat/completions", json=body, headers=head
            ) as answer:
                assert answer.status == 503
                assert answer.headers["retry-after"] == "0"
                assert answer.headers["x-should-retry"] == "true"
                assert (await answer.json())["error"]["type"] == "server_error"
            assert isinstance(c.endpoint.failure, InfrastructureError)
            assert (await c.chat("?"))["content"] == "hi"
            assert c.endpoint.failure is None
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_a_full_context_is_openais_own_error() -> None:
    async def run() -> None:
        async with client(engine=ScriptedEngine(replies="hi", context=100)) as c:
            status, answer = await c.post("/chat/completions", {"messages": talk("?" * 200)})
            assert status == 400
            assert answer["error"]["code"] == "context_length_exceeded"
            assert c.endpoint.limit is not None

    asyncio.run(run())


def test_a_client_that_leaves_cancels_its_sampling_and_the_request_can_be_sent_again() -> None:
    async def run() -> None:
        engine = Slow()
        async with client(engine=engine) as c:
            asked = asyncio.create_task(c.chat("?"))
            await until(lambda: engine.running)
            asked.cancel()
            await until(lambda: engine.cancelled)
            await until(lambda: not c.endpoint.busy)
            engine.go.set()
            assert (await c.chat("?"))["content"] == "late"
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


def test_the_end_of_an_episode_cancels_what_is_in_flight_and_refuses_what_comes_later() -> None:
    async def run() -> None:
        engine = Slow()
        policy = EnginePolicy(engine, Sampling(seed=1))
        async with Gateway() as gateway, aiohttp.ClientSession() as http:

            async def post(key: str) -> tuple[int, str]:
                head = {"Authorization": f"Bearer {key}"}
                url = gateway.base_url + "/chat/completions"
                async with http.post(url, json={"messages": talk("?")}, headers=head) as answer:
                    return answer.status, (await answer.json())["error"]["code"]

            async with gateway.serve(policy) as endpoint:
                asked = [asyncio.create_task(post(endpoint.api_key)) for _ in range(5)]
                await until(lambda: engine.running == 5)
            assert await asyncio.gather(*asked) == [(410, "episode_over")] * 5
            assert engine.cancelled == 5
            assert await post(endpoint.api_key) == (410, "episode_over")
            assert await post("x") == (401, "invalid_api_key")

    asyncio.run(run())


def test_an_abandoned_endpoint_ends_with_the_task_that_opened_it() -> None:
    async def run() -> None:
        async with Gateway() as gateway:
            entered = []

            async def open_and_forget() -> None:
                opened = gateway.serve(EnginePolicy(ScriptedEngine(), Sampling()))
                entered.append((opened, await opened.__aenter__()))

            await asyncio.create_task(open_and_forget())
            ((opened, endpoint),) = entered
            await until(lambda: endpoint.closed)
            await opened.__aexit__(None, None, None)

    asyncio.run(run())


def test_requests_beyond_the_concurrency_wait_and_those_beyond_the_queue_are_refused() -> None:
    async def run() -> None:
        engine = Slow()
        async with client(engine=engine, concurrency=2, queue=4) as c:
            asked = [asyncio.create_task(c.chat(f"{i}?")) for i in range(4)]
            await until(lambda: engine.running == 2 and c.endpoint.requests == 4)
            status, answer = await c.post("/chat/completions", {"messages": talk("5?")})
            assert status == 429
            assert answer["error"]["code"] == "too_many_requests"
            engine.go.set()
            assert [m["content"] for m in await asyncio.gather(*asked)] == ["late"] * 4
            assert engine.most == 2

    asyncio.run(run())


def test_many_episodes_at_once_never_see_one_another() -> None:
    """64 endpoints, each with its secret in the conversation, several requests each, all at
    once.
    """

    def echo(messages: list[Message]) -> str:
        return " ".join(re.findall(r"secret-\d+", " ".join(m.content for m in messages)))

    async def run() -> None:
        policies = [EnginePolicy(ScriptedEngine(replies=echo), Sampling(seed=1)) for _ in range(64)]
        async with Gateway() as gateway, aiohttp.ClientSession() as http:

            async def episode(number: int) -> None:
                async with gateway.serve(policies[number]) as endpoint:
                    messages: list[Any] = talk(f"keep secret-{number}")
                    for _ in range(3):
                        head = {"Authorization": f"Bearer {endpoint.api_key}"}
                        url = gateway.base_url + "/chat/completions"
                        async with http.post(
                            url, json={"messages": messages}, headers=head
                        ) as answer:
                            said = (await answer.json())["choices"][0]["message"]
                        assert set(said["content"].split()) == {f"secret-{number}"}
                        messages += [said, {"role": "user", "content": "again"}]

            await asyncio.gather(*(episode(i) for i in range(64)))
        for number, policy in enumerate(policies):
            (transcript,) = policy.transcripts().values()
            text = bytes(i for i in transcript.path(0).ids if i < 256).decode()
            assert set(re.findall(r"secret-\d+", text)) == {f"secret-{number}"}

    asyncio.run(run())


def test_nothing_is_left_behind() -> None:
    async def run() -> None:
        async with client() as c:
            await asyncio.gather(*(c.chat(f"{i}?") for i in range(8)))
            await c.post("/chat/completions", b"{")
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    gc.collect()  # a socket that is still open would warn, and warnings are errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"concurrency": 0}, "gateway: concurrency is 0; expected at least 1"),
        ({"queue": -1}, "gateway: queue is -1; expected at least 1"),
        ({"max_bytes": 0}, "gateway: max_bytes is 0; expected at least 1"),
        ({"port": 99999}, "port is 99999; expected 0"),
    ],
)
def test_a_gateway_that_could_answer_no_request_is_refused(
    setting: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Gateway(**setting)


def test_a_port_in_use_is_an_error_with_a_fix() -> None:
    async def run() -> None:
        async with Gateway() as first:
            with pytest.raises(InfrastructureError, match="take another port, or 0 for a free one"):
                async with Gateway(port=first._server.port):
                    pass

    asyncio.run(run())


def test_replies_to_one_request_with_a_seed_differ_and_can_be_had_again() -> None:
    """As with OpenAI, whose seed repeats the replies and does not make them equal."""

    async def run() -> list[list[str]]:
        async with client(lambda messages, rng: f"number {rng.random()}") as c:
            found = []
            for _ in range(2):
                body = {"messages": talk("?"), "n": 3, "seed": 5}
                _, answer = await c.post("/chat/completions", body)
                found.append([ch["message"]["content"] for ch in answer["choices"]])
            _, answer = await c.post("/chat/completions", {"messages": talk("?"), "seed": 5})
            assert found[0][0] == answer["choices"][0]["message"]["content"]
            return found

    first, again = asyncio.run(run())
    assert len(set(first)) == 3
    assert first == again
