"""The OpenAI client against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from quintain import Message, Reply, Sampling, ToolCall, ToolSpec
from quintain.errors import InfrastructureError, LimitReached, UsageError
from quintain_engines.openai import protocol
from quintain_engines.openai.client import OpenAIEngine

from .http_kit import openai_server

Answer = tuple[int, Any] | Callable[[dict[str, Any]], tuple[int, Any]]
HELLO = (Message("user", "hello"),)
GROWN = (*HELLO, Message("assistant", "hi"), Message("user", "more"))


def said(text: str = "hi", finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text, **message},
    }
    return {
        "object": "chat.completion",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


class Server:
    """Answers in order from a list (the last one again and again), and keeps what it was asked."""

    def __init__(
        self, *answers: Answer, models: Sequence[str] = ("m",), header: dict[str, str] | None = None
    ) -> None:
        self.answers = list(answers)
        self.models = models
        self.header = header or {}
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.together = self.most_together = 0

    async def chat(self, request: Any) -> Any:
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        await asyncio.sleep(0)
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        status, data = answer(body) if callable(answer) else answer
        if status == 0:
            await asyncio.sleep(data)
            status, data = 200, said("late")
        self.together -= 1
        text = data if isinstance(data, str) else json.dumps(data)
        return web.Response(
            status=status, text=text, headers=self.header, content_type="application/json"
        )

    async def listing(self, request: Any) -> Any:
        if request.headers.get("Authorization") == "Bearer wrong":
            return web.json_response({"error": {"message": "bad key"}}, status=401)
        if not self.models:
            return web.Response(status=404)
        return web.json_response(
            {
                "object": "list",
                "data": [{"id": m, "max_model_len": self.longest} for m in self.models],
            }
        )

    longest: int | None = None

    def up(self) -> contextlib.AbstractAsyncContextManager[str]:
        """The address of this server."""
        return openai_server(self.chat, self.listing)


def ask(
    server: Server,
    messages: Sequence[Message] = HELLO,
    tools: Sequence[ToolSpec] = (),
    sampling: Sampling | None = None,
    **config: Any,
) -> Reply:
    """One reply of *server* through the client."""

    async def run() -> Reply:
        async with (
            server.up() as url,
            OpenAIEngine(base_url=url, **{"backoff": 0.001, **config}) as engine,
        ):
            return await engine.reply(messages, tools, sampling or Sampling(seed=1))

    return asyncio.run(run())


def test_a_plain_reply() -> None:
    server = Server((200, said("four")))
    reply = ask(
        server, sampling=Sampling(temperature=0.5, max_tokens=7, stop=("\n",), seed=2**40 + 5)
    )
    assert reply == Reply(text="four", usage={"prompt_tokens": 3, "completion_tokens": 2})
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.5,
            "max_tokens": 7,
            "stop": ["\n"],
            "seed": 5,
        }
    ]
    assert server.keys == [None]


def test_neutral_settings_are_not_sent_and_others_are() -> None:
    server = Server((200, said()))
    ask(server, sampling=Sampling(temperature=0))
    ask(
        server,
        sampling=Sampling(top_p=0.9, top_k=5, min_p=0.1, stop_ids=(2,), max_tokens=3),
        limit_key="max_completion_tokens",
        extra={"chat_template_kwargs": {"enable_thinking": False}},
    )
    assert set(server.bodies[0]) == {"model", "messages", "temperature"}
    more = {
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "stop_token_ids": [2],
        "max_completion_tokens": 3,
    }
    assert more.items() <= server.bodies[1].items()
    assert server.bodies[1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_tool_calls_both_ways() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'},
    }
    server = Server(
        (200, said("", "tool_calls", content=None, tool_calls=[call], reasoning_content="sum"))
    )
    spec = ToolSpec(name="add", description="Adds.")
    earlier = ToolCall(name="add", arguments={"a": 0}, id="c0", result="0")
    messages = [
        Message("system", "be brief"),
        Message("user", "1+2?"),
        Message("assistant", "", calls=(earlier,), reasoning="kept back"),
        Message("tool", "0", call_id="c0", name="add"),
    ]
    reply = ask(server, messages, [spec])
    assert reply.calls == (ToolCall(name="add", arguments={"a": 1, "b": [2]}, id="c1"),)
    assert reply.text == ""
    assert reply.reasoning == "sum"
    assert reply.finish == "stop"
    body = server.bodies[0]
    assert body["tools"] == [spec.to_json()]
    function = {"name": "add", "arguments": '{"a": 0}'}
    assert body["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c0", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "0", "tool_call_id": "c0"},
    ]


@pytest.mark.parametrize(
    "arguments, expected", [("{oops", "not JSON"), ("[1]", "an object"), ('"x"', "an object")]
)
def test_an_unreadable_tool_call_is_the_policys_doing(arguments: str, expected: str) -> None:
    call = {"function": {"name": "add", "arguments": arguments}}
    reply = ask(Server((200, said("", "tool_calls", tool_calls=[call]))))
    assert expected in reply.calls[0].error
    assert reply.calls[0].id == "call-0"


@pytest.mark.parametrize(
    "finish, expected", [("length", "length"), ("stop", "stop"), (None, "stop")]
)
def test_finish_reasons(finish: str | None, expected: str) -> None:
    assert ask(Server((200, said("a", finish)))).finish == expected


def test_a_withheld_reply_is_not_the_policys_doing() -> None:
    with pytest.raises(InfrastructureError, match="content_filter"):
        ask(Server((200, said("", "content_filter"))))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_failures_are_retried(status: int) -> None:
    server = Server((status, "busy"), (status, "busy"), (200, said("third time")))
    assert ask(server).text == "third time"
    assert len(server.bodies) == 3


def test_retries_end() -> None:
    server = Server((503, {"error": {"message": "warming up"}}))
    with pytest.raises(InfrastructureError, match=r"failed 3 times; last: .*503: warming up"):
        ask(server, retries=2)
    assert len(server.bodies) == 3


def test_retry_after_is_respected() -> None:
    server = Server((429, "slow down"), (200, said()), header={"Retry-After": "0.3"})

    async def run() -> float:
        async with server.up() as url, OpenAIEngine(base_url=url, backoff=0.001) as engine:
            start = asyncio.get_running_loop().time()
            await engine.reply(HELLO, (), Sampling())
            return asyncio.get_running_loop().time() - start

    assert asyncio.run(run()) >= 0.3


def test_a_slow_server_times_out() -> None:
    with pytest.raises(InfrastructureError, match="failed 2 times"):
        ask(Server((0, 5.0)), timeout=0.1, retries=1)


def test_a_dropped_connection_is_retried() -> None:
    async def run() -> Reply:
        server, dropped = Server((200, said("again"))), 0

        async def chat(request: Any) -> Any:
            nonlocal dropped
            dropped += 1
            if dropped == 1:
                request.transport.close()
            return await Server.chat(server, request)

        server.chat = chat  # type: ignore[method-assign]
        async with server.up() as url, OpenAIEngine(base_url=url, backoff=0.001) as engine:
            return await engine.reply(HELLO, (), Sampling())

    assert asyncio.run(run()).text == "again"


CONTEXT_REFUSALS = [
    {
        "error": {
            "message": "This model's maximum context length is 4096 tokens.",
            "code": "context_length_exceeded",
        }
    },
    {"error": {"code": 400, "message": "too much", "type": "exceed_context_size_error"}},
    {
        "error": {
            "code": 400,
            "message": "request (4476 tokens) exceeds the available context size (4096 tokens)",
        }
    },
    {
        "object": "error",
        "message": "The decoder prompt (length 50) is longer than the maximum model length of 16.",
    },
    {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}},
]


@pytest.mark.parametrize("refusal", CONTEXT_REFUSALS)
def test_a_full_context_is_the_policys_doing(refusal: dict[str, Any]) -> None:
    server = Server((400, refusal))
    with pytest.raises(LimitReached) as e:
        ask(server, GROWN)
    assert e.value.limit == "context"
    assert len(server.bodies) == 1


@pytest.mark.parametrize("refusal", CONTEXT_REFUSALS)
def test_a_first_prompt_that_is_too_long_is_not_the_policys_doing(refusal: dict[str, Any]) -> None:
    """Else a server that refuses everything so would score 0."""
    with pytest.raises(InfrastructureError, match="The policy has said nothing yet"):
        ask(Server((400, refusal)))


@pytest.mark.parametrize(("listed", "kind"), [(8192, InfrastructureError), (512, LimitReached)])
def test_a_conversation_that_fits_in_the_listed_context_is_not_too_long(
    listed: int, kind: type[Exception]
) -> None:
    server = Server((400, CONTEXT_REFUSALS[0]))
    server.longest = listed
    with pytest.raises(kind):
        ask(server, GROWN)


def test_a_limit_that_the_context_does_not_leave_is_dropped() -> None:
    refusal = (
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context "
        "length is 4096 tokens and your request has 12 input tokens (5000 > 4096 - 12)."
    )

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        return (
            (400, {"error": {"message": refusal}}) if "max_tokens" in body else (200, said("fits"))
        )

    assert ask(Server(answer), sampling=Sampling(max_tokens=5000)).text == "fits"


@pytest.mark.parametrize(
    "status, body, expected",
    [
        (400, {"error": {"message": "bad role"}}, "400: bad role"),
        (422, {"detail": "field required"}, "422: field required"),
        (404, {"error": {"message": "no model"}}, r"it serves m; base_url should end in /v1"),
        (
            400,
            {"error": {"message": "Unsupported parameter: use max_completion_tokens"}},
            "limit_key",
        ),
        (307, "", "redirects are not followed"),
        (200, "<html>", "no readable JSON"),
        (200, {"oops": 1}, "not a chat completion"),
        (200, [], "not a chat completion"),
        (200, {"choices": [{"message": None}]}, "not a chat completion"),
        (200, said(text=3), "not text"),  # type: ignore[arg-type]
    ],
)
def test_other_refusals_are_ours_and_not_retried(status: int, body: Any, expected: str) -> None:
    server = Server((status, body))
    with pytest.raises(InfrastructureError, match=expected):
        ask(server)
    assert len(server.bodies) == 1


def test_the_key_is_read_from_the_named_variable_and_goes_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MY_KEY", "mine")
    server = Server((200, said()))
    ask(server)
    ask(server, api_key="MY_KEY")
    assert server.keys == [None, "Bearer mine"]


def test_a_wrong_key_shows_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "wrong")
    with pytest.raises(InfrastructureError, match=r"401: bad key .*\$MY_KEY") as e:
        ask(Server((200, said())), api_key="MY_KEY")
    assert "wrong" not in str(e.value)


def test_bad_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET_KEY", raising=False)
    with pytest.raises(UsageError, match="base_url"):
        OpenAIEngine(base_url="localhost:8000")
    with pytest.raises(UsageError, match="NAME of an environment variable") as e:
        OpenAIEngine(api_key="sk-abc-def")
    assert "sk-abc" not in str(e.value)
    with pytest.raises(UsageError, match="export UNSET_KEY"):
        OpenAIEngine(api_key="UNSET_KEY")


def test_the_only_model_is_taken_and_several_are_not_guessed() -> None:
    server = Server((200, said()), models=("qwen",))
    ask(server)
    assert server.bodies[0]["model"] == "qwen"
    with pytest.raises(UsageError, match="serves a, b"):
        ask(Server((200, said()), models=("a", "b")))
    server = Server((200, said()), models=())  # a server without a listing
    ask(server, model="named")
    assert server.bodies[0]["model"] == "named"


def test_nobody_there() -> None:
    async def run() -> None:
        async with OpenAIEngine(base_url="http://127.0.0.1:1/v1", retries=1, backoff=0.001):
            pass

    with pytest.raises(InfrastructureError) as raised:
        asyncio.run(run())
    assert str(raised.value) == (
        "no server answers at http://127.0.0.1:1/v1 (GET http://127.0.0.1:1/v1/models failed 2 "
        "times; last: http://127.0.0.1:1/v1/models gave no answer: Cannot connect to host "
        "127.0.0.1:1 ssl:default [Connect call failed "
        "('127.0.0.1', 1)]); is the server running? Start it, or check the URL"
    )


def test_not_started() -> None:
    with pytest.raises(InfrastructureError, match="async with"):
        asyncio.run(OpenAIEngine(model="m").reply(HELLO, (), Sampling()))


def test_requests_run_side_by_side() -> None:
    server = Server((200, said()))

    async def run() -> None:
        async with server.up() as url, OpenAIEngine(base_url=url) as engine:
            await asyncio.gather(*(engine.reply(HELLO, (), Sampling(seed=i)) for i in range(200)))

    asyncio.run(run())
    assert len(server.bodies) == 200
    assert server.most_together > 8


KEYS = ["choices", "message", "content", "tool_calls", "function", "usage", "x"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=12,
)


choices = st.lists(st.fixed_dictionaries({"message": json_values}), max_size=2)


@given(json_values | st.fixed_dictionaries({"choices": choices}))
def test_any_response_gives_a_reply_or_our_error(response: Any) -> None:
    with contextlib.suppress(InfrastructureError):
        assert isinstance(protocol.reply_of(response), Reply)


@given(st.text(max_size=50) | json_values.map(json.dumps))
def test_any_error_body_has_a_short_message(text: str) -> None:
    assert len(protocol.said_by(text)) <= 300


class Flood(Server):
    """Never stops to answer; *where* is the route that floods."""

    def __init__(self, where: str) -> None:
        super().__init__((200, said()))
        self.where, self.sent = where, 0

    async def flood(self, request: Any) -> Any:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while self.sent < 10**9:
                await response.write(b'{"x": ' + b"\x20" * 1_000_000)
                self.sent += 1_000_000
                await asyncio.sleep(0)
        return response

    async def chat(self, request: Any) -> Any:
        return await (self.flood(request) if self.where == "chat" else super().chat(request))

    async def listing(self, request: Any) -> Any:
        return await (self.flood(request) if self.where == "models" else super().listing(request))


@pytest.mark.parametrize("where", ["chat", "models"])
def test_an_endless_answer_is_not_read_to_its_end(where: str) -> None:
    """The client reads at most its limit, and does not ask again."""
    server = Flood(where)
    limit = {"chat": "2,000,000", "models": "16,000,000"}[where]
    with pytest.raises(InfrastructureError, match=f"more than {limit} bytes"):
        ask(server, max_bytes=2_000_000)
    assert server.sent < 200_000_000


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = [
    DEEP,
    '{"choices": ' + DEEP + "}",
    json.dumps(
        said(
            tool_calls=[{"function": {"name": "f", "arguments": json.loads("[" * 100 + "]" * 100)}}]
        )
    ),
    json.dumps(said(tool_calls=[{"function": {"name": 5, "arguments": "{}"}}])),
    json.dumps(said(tool_calls=[{"id": [1], "function": {"name": "f", "arguments": "{}"}}])),
    json.dumps(said(tool_calls=5)),
    json.dumps(said() | {"usage": [1]}),
    json.dumps(said(finish=["stop"])),  # type: ignore[arg-type]
    "9" * 5000,
    '{"choices": [' + "9" * 5000 + "]}",
    "",
    "null",
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: body[:40])
@pytest.mark.parametrize("status", [200, 400])
def test_a_hostile_answer_is_an_infrastructure_error(status: int, body: str) -> None:
    """Depth, types and numbers that no completion has never reach the rollout."""
    with pytest.raises(InfrastructureError) as caught:
        ask(Server((status, body)))
    assert len(str(caught.value)) < 700


def test_a_deep_list_of_models_is_refused() -> None:
    """The probe at the start reads JSON of any depth without a traceback."""

    class Deep(Server):
        async def listing(self, request: Any) -> Any:
            return web.Response(text=DEEP, content_type="application/json")

    with pytest.raises(InfrastructureError, match="no readable JSON"):
        ask(Deep((200, said())))


@pytest.mark.parametrize("count", [-5, 10**30, 2**31, True, 1.5, "7", None])
def test_a_count_of_tokens_that_cannot_be_is_left_out(count: object) -> None:
    """A rollout holds counts that fit its columns."""
    answer = said() | {"usage": {"completion_tokens": count, "prompt_tokens": 3}}
    assert ask(Server((200, answer))).usage == {"prompt_tokens": 3}


def test_an_unreadable_deep_tool_call_is_the_policys_doing() -> None:
    """Arguments are text that the policy wrote."""
    answer = said(tool_calls=[{"function": {"name": "f", "arguments": DEEP}}])
    assert "levels" in ask(Server((200, answer))).calls[0].error


def test_what_no_file_can_hold_is_replaced() -> None:
    """A lone surrogate of a reply would fail when the rollouts are written."""
    reply = ask(Server((200, '{"choices": [{"message": {"content": "a\\ud800b"}}]}')))
    assert reply.text == "a?b"


def test_control_characters_of_a_server_do_not_reach_the_terminal() -> None:
    """Messages and names of models cannot move the cursor or set the title."""
    escape = "\x1b]0;owned\x07\x1b[2J"
    with pytest.raises(InfrastructureError) as caught:
        ask(Server((400, {"error": {"message": f"no {escape}"}})))
    assert "owned" in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(UsageError) as listed:
        ask(Server((200, said()), models=(f"a{escape}", "b")))
    assert str(listed.value).isprintable()

    async def name() -> str:
        async with (
            Server((200, said()), models=(f"a{escape}",)).up() as url,
            OpenAIEngine(base_url=url) as engine,
        ):
            return engine.name

    assert asyncio.run(name()).isprintable()


def test_a_password_in_the_url_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the engine's name nor an error has it; the server gets it as basic authentication."""
    server = Server((200, said()), (400, {"error": "no"}), models=())

    async def run() -> str:
        async with server.up() as url:
            engine = OpenAIEngine(
                base_url=url.replace("//", "//me:s%40cret@"), model="", backoff=0.001
            )
            assert "cret" not in engine.name + engine.base_url
            engine.model = "m"
            async with engine:
                await engine.reply(HELLO, (), Sampling())
                with pytest.raises(InfrastructureError) as refused:
                    await engine.reply(HELLO, (), Sampling())
            return str(refused.value)

    assert "cret" not in asyncio.run(run())
    assert server.keys[0] == "Basic " + base64.b64encode(b"me:s@cret").decode()
    for url in (
        "htp://me:secret@host/v1",
        "http://me:secret@host:999999/v1",
        "http://me:secret@[::1/v1",
        "http://a\nb",
    ):
        with pytest.raises(UsageError, match="expected something like") as caught:
            OpenAIEngine(base_url=url)
        assert "secret" not in str(caught.value)
    with pytest.raises(InfrastructureError) as nobody:
        asyncio.run(
            OpenAIEngine(base_url="http://me:secret@127.0.0.1:1/v1", retries=0).__aenter__()
        )
    assert "secret" not in str(nobody.value)
    monkeypatch.setenv("KEY_OF_TEST", "k")
    with pytest.raises(UsageError, match="leave one of them out"):
        OpenAIEngine(base_url="http://me:secret@host/v1", api_key="KEY_OF_TEST")
    monkeypatch.setenv("KEY_OF_TEST", "a\nb")
    with pytest.raises(UsageError, match="line break"):
        OpenAIEngine(base_url="http://host/v1", api_key="KEY_OF_TEST")
