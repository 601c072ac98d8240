"""Answers that are good HTTP and good JSON, and not what was asked for: each is a typed failure of
the infrastructure, and none is a token, a log-prob, a reward or a reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from quintain.errors import InfrastructureError
from quintain_authoring import run_episode
from quintain_bridges.nemo_gym.environment import _verified
from quintain_bridges.openenv import OpenEnv

from ..plugins.engines.openai.http_kit import in_thread
from .hostile_server import HostileServer
from .test_hostile_servers import clients, tokenizer

Change = Callable[[Any], Any]


def answered(name: str, change: Change) -> None:
    """Ask with the client *name* a server whose answer *change* has changed.

    Raises:
        What the client raises.
    """
    client = clients()[name]
    body = change(copy.deepcopy(client.honest[client.path]))

    async def lie(x: Any) -> None:
        await x.answer(json.dumps(body).encode())

    async def run() -> None:
        async with HostileServer(client.honest, client.path, lie).up() as server:
            await client.ask(server.url)

    asyncio.run(run())


def setting(*path: Any) -> Change:
    """Set what *path* names, whose last item is the value."""
    *keys, last, value = path

    def change(body: Any) -> Any:
        place = body
        for key in keys:
            place = place[key]
        place[last] = value
        return body

    return change


def choice(*path: Any) -> Change:
    return setting("choices", 0, *path)


def twice(body: Any) -> Any:
    return {**body, "choices": body["choices"] * 2}


LIES: list[tuple[str, str, Change]] = [
    *[("chat", f"{where} is {value!r}", choice(*where, value)) for where, value in [
        (("message",), {}),
        (("message",), None),
        (("message",), "hello"),
        (("message", "content"), None),
        (("message", "content"), 5),
        (("message", "content"), [{"type": "text"}]),
        (("message", "tool_calls"), "all"),
        (("finish_reason",), "content_filter"),
        (("finish_reason",), "error"),
        (("finish_reason",), True),
        (("index",), 1),
        (("index",), "0"),
    ]],
    ("chat", "two choices", twice),
    ("chat", "no choices", setting("choices", [])),
    ("chat", "an error beside", setting("error", {"message": "overloaded"})),
    ("judge", "two choices", twice),
    ("judge", "an error beside", setting("error", "overloaded")),
    ("judge", "no content", choice("message", "content", None)),
    *[("models", f"data is {value!r}", setting("data", value)) for value in (5, "m", {}, None, True)],
    *[("tokens", f"{where} is {value!r}", choice(*where, value)) for where, value in [
        (("token_ids",), [64, 65, 99, 100, 101, 102]),
        (("token_ids",), [64, 2**40]),
        (("token_ids",), [64, 260]),
        (("token_ids",), [64, -1]),
        (("token_ids",), [64, "65"]),
        (("token_ids",), [64, 65.0]),
        (("token_ids",), [64, True]),
        (("token_ids",), "ab"),
        (("token_ids",), [64]),
        (("logprobs", "token_logprobs"), [-0.5, 3.0]),
        (("logprobs", "token_logprobs"), [-0.5, "-1.0"]),
        (("logprobs", "token_logprobs"), [-0.5, False]),
        (("logprobs", "token_logprobs"), [-0.5, None]),
        (("logprobs", "token_logprobs"), [-0.5, float("nan")]),
        (("logprobs", "token_logprobs"), [-0.5, float("-inf")]),
        (("logprobs", "token_logprobs"), {}),
        (("prompt_token_ids",), [5, 7]),
        (("prompt_token_ids",), [5]),
        (("text",), "another text"),
        (("index",), 3),
        (("finish_reason",), "abort"),
    ]],
    ("tokens", "two choices", twice),
    ("tokens", "an error beside", setting("error", {"message": "overloaded"})),
    *[("teacher", f"the log-prob is {value!r}", setting("prompt_logprobs", 1, "6", "logprob", value))
      for value in (float("nan"), float("inf"), float("-inf"), 50.0, "-1.0", True, None, [])],
    ("teacher", "a token is no text", setting("prompt_logprobs", 1, "6", "decoded_token", 5)),
    ("teacher", "a place too few", setting("prompt_logprobs", [None])),
    ("teacher", "another token", setting("prompt_logprobs", 1, {"7": {"logprob": -1.0, "rank": 1}})),
    ("teacher", "no table", setting("prompt_logprobs", [None, 5])),
    *[("nemo_gym", f"the answer is {value!r}", lambda _, value=value: value)
      for value in (5, [1.0], "1.0", None, True)],
    *[("openenv_tasks", f"the list is {value!r}", lambda _, value=value: value)
      for value in ({}, "abc", 5, [], [5], [{"name": "x"}], None, True)],
    *[("openenv_schema", f"the schema is {value!r}", lambda _, value=value: value)
      for value in ([], "abc", 5, {"action": []}, {"action": {"required": 5}}, {})],
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(name, change, id=f"{name}: {what}") for name, what, change in LIES],
)
def test_a_wrong_answer_is_a_failure_of_the_server(name: str, change: Change) -> None:
    with pytest.raises(InfrastructureError):
        answered(name, change)


def test_a_refusal_of_the_model_is_its_reply() -> None:
    """What it says, in the place where some servers put it."""

    def refuse(body: Any) -> Any:
        message = {"role": "assistant", "content": None, "refusal": '{"reason": "r", "score": 1}'}
        return choice("message", message)(body)

    answered("chat", refuse)


@pytest.mark.parametrize("text", ["ab", " ab", "ab\n"])
def test_the_text_of_the_ids_is_accepted(text: str) -> None:
    own = tokenizer().decode([64, 65])
    answered("tokens", choice("text", text.replace("ab", own)))


@pytest.mark.parametrize(
    "reward", ["1.0", True, False, [1], {}, float("nan"), float("inf"), 10**400]
)
def test_a_reward_of_nemo_gym_is_a_finite_number(reward: Any) -> None:
    with pytest.raises(InfrastructureError, match="reward"):
        _verified({"reward": reward}, {})


def test_numbers_beside_a_reward_are_few() -> None:
    with pytest.raises(InfrastructureError, match="200000 numbers"):
        _verified({"reward": 1.0} | {f"n{i}": i for i in range(200_000)}, {})


# -- OpenEnv's WebSocket

FIRST = {"type": "observation", "data": {"observation": {"text": "begin"}, "done": False}}
STEP = {"type": "observation", "data": {"observation": {"text": "x"}, "reward": 1.0, "done": True}}
NO_TOOLS = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}}


@contextlib.asynccontextmanager
async def sockets(reset: list[Any], step: list[Any], tools: list[Any]) -> AsyncIterator[str]:
    """The address of a server that answers each kind of request by all of these messages; text and
    bytes are sent as they are, and a number is a pause.
    """
    answers = {"reset": reset, "step": step, "mcp": tools}

    async def socket(request: web.Request) -> web.WebSocketResponse:
        connected = web.WebSocketResponse()
        await connected.prepare(request)
        async for message in connected:
            kind = json.loads(message.data)["type"]
            if kind == "close":
                break
            for answer in answers.get(kind, ()):
                if isinstance(answer, float):
                    await asyncio.sleep(answer)
                elif isinstance(answer, bytes):
                    await connected.send_bytes(answer)
                elif answer is None:
                    await connected.close()
                else:
                    text = answer if isinstance(answer, str) else json.dumps(answer)
                    await connected.send_str(text)
        return connected

    async def schema(_: web.Request) -> web.Response:
        field = {"message": {"type": "string"}}
        return web.json_response({"action": {"properties": field, "required": ["message"]}})

    app = web.Application()
    app.router.add_get("/ws", socket)
    app.router.add_get("/schema", schema)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def played(**answers: list[Any]) -> Any:
    """An episode of one step with a server of these answers."""
    given = {"reset": [FIRST], "step": [STEP], "tools": [NO_TOOLS], **answers}
    with in_thread(sockets(**given)) as url:
        environment = OpenEnv(url=url, seconds=1.0, size=4)
        return run_episode(environment, next(iter(environment.tasks("train"))), ["hi"])


def step(**changes: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {**STEP["data"], **changes}}  # type: ignore[dict-item]


def error(code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": "no", **more}}


def test_an_honest_session_is_scored() -> None:
    rollout = played()
    assert rollout.termination.kind == "finished"
    assert rollout.outcome.total == 1.0


@pytest.mark.keeps("text as done", "two observations", "a refused text")
@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"step": [step(done="false")]}, id="text as done"),
        pytest.param({"step": [step(done=1)]}, id="number as done"),
        pytest.param({"step": [step(reward="1.0")]}, id="text as reward"),
        pytest.param({"step": [step(reward=True)]}, id="true as reward"),
        pytest.param({"step": [step(reward=[1])]}, id="list as reward"),
        pytest.param({"step": [step(observation="x")]}, id="text as observation"),
        pytest.param({"step": [step(observation=[])]}, id="list as observation"),
        pytest.param({"step": [{**STEP, "type": "state"}]}, id="another type"),
        pytest.param({"step": [{"type": "observation"}]}, id="no data"),
        pytest.param({"step": ["[" * 100_000]}, id="brackets"),
        pytest.param({"step": ["null"]}, id="null"),
        pytest.param({"step": ["5"]}, id="a number"),
        pytest.param({"step": [""]}, id="nothing"),
        pytest.param({"step": [b"{}"]}, id="bytes"),
        pytest.param({"step": [None]}, id="closes"),
        pytest.param({"step": [3.0, STEP]}, id="late"),
        pytest.param({"step": [STEP, STEP]}, id="two observations"),
        pytest.param({"reset": [FIRST, FIRST]}, id="two beginnings"),
        pytest.param({"step": [error("VALIDATION_ERROR", errors=[])]}, id="a refused text"),
        pytest.param({"step": [error("SESSION_ERROR")]}, id="no session"),
        pytest.param({"reset": [error("FACTORY_ERROR")]}, id="no factory"),
        pytest.param({"reset": [None]}, id="closes at the start"),
        pytest.param({"reset": []}, id="silent"),
        pytest.param({"tools": [{"type": "mcp", "data": {"result": {"tools": 5}}}]}, id="tools 5"),
        pytest.param({"tools": [{"type": "mcp", "data": {"result": {"tools": [5]}}}]}, id="tool 5"),
        pytest.param({"tools": [FIRST]}, id="observation for tools"),
    ],
)
def test_a_session_that_cannot_be_believed_is_left_out(answers: dict[str, list[Any]]) -> None:
    rollout = played(**answers)
    assert rollout.termination.kind == "infrastructure_error"
    assert rollout.outcome is None


@pytest.mark.more
def test_pings_are_no_answer() -> None:
    """The seconds are those until the answer, whatever else keeps the connection busy."""

    async def run() -> str:
        async def socket(request: web.Request) -> web.WebSocketResponse:
            connected = web.WebSocketResponse()
            await connected.prepare(request)
            with contextlib.suppress(ConnectionError):
                for _ in range(2000):
                    await connected.ping()
                    await asyncio.sleep(0.01)
            return connected

        app = web.Application()
        app.router.add_get("/ws", socket)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with asyncio.timeout(15):
                client = clients()["openenv_socket"]
                await client.ask(f"http://127.0.0.1:{runner.addresses[0][1]}")
        except InfrastructureError as e:
            return str(e)
        finally:
            await runner.cleanup()
        return ""

    assert "gave no answer to 'reset' within" in asyncio.run(run())


@pytest.mark.parametrize("name", ["chat", "judge", "nemo_gym"])
def test_a_late_answer_is_not_taken_for_the_next(name: str) -> None:
    """A server that sends a second response on a connection finds nobody to read it."""
    client = clients()[name]
    connections: list[int] = []

    async def again(x: Any) -> None:
        connections.append(1)
        await x.answer(x.honest)
        await asyncio.sleep(0.003)
        with contextlib.suppress(ConnectionError):
            await x.answer(b'{"stale": true}')

    async def run() -> None:
        async with HostileServer(client.honest, client.path, again).up() as server:
            for _ in range(3):
                await client.ask(server.url)

    asyncio.run(run())
    assert len(connections) == 3
