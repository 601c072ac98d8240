"""Each client of a server against each way in which a server can misbehave: a typed error or the
right answer, in bounded bytes and seconds, nothing to another host.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from quintain import Message, Reply, Sampled, Sampling
from quintain.errors import EpisodeError, QuintainError, RewardFault, ToolError
from quintain.models import HFTokenizer
from quintain_bridges.nemo_gym.environment import _verified
from quintain_bridges.nemo_gym.server import gym_session
from quintain_bridges.openenv.environment import _list, _text_field, _text_fields
from quintain_bridges.openenv.wire import session
from quintain_engines.openai import OpenAIEngine, OpenAITokenEngine
from quintain_engines.vllm import VLLMServer
from quintain_engines.vllm.handover import shape_of
from quintain_judge.backends import EndpointTable, OpenAIBackend
from quintain_offline.distill.server import ServerScorer
from quintain_offline.distill.teacher import TeacherRow
from quintain_tools.mcp import Mcp, McpServer
from quintain_view.watch.otlp import Exporter

from ..core.models.tiny import byte_tokenizer, tiny_model
from ..plugins.view.watch.kit import Spans
from .hostile_server import LARGEST, MISBEHAVIOURS, SENT_AT_MOST, HostileServer, mcp_answer

SECONDS = 1.0
"""That clients of the kit wait for an answer."""
PATIENCE = 20.0
"""After which one hangs, on a busy machine too."""


@cache
def tokenizer() -> HFTokenizer:
    return HFTokenizer(byte_tokenizer())


MODEL = {"data": [{"id": "m", "max_model_len": 128}]}
CHAT = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": '{"reason": "r", "score": 1}'},
        }
    ]
}


async def chat(url: str) -> Any:
    settings: dict[str, Any] = {"timeout": SECONDS, "retries": 0, "max_bytes": LARGEST}
    async with OpenAIEngine(base_url=f"{url}/v1", model="m", **settings) as engine:
        reply = await engine.reply([Message("user", "hello")], (), Sampling(max_tokens=4))
    assert reply == Reply(text='{"reason": "r", "score": 1}')


TOKENS = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "token_ids": [64, 65],
            "logprobs": {"token_logprobs": [-0.5, -0.25]},
        }
    ]
}


async def tokens(url: str) -> Any:
    settings: dict[str, Any] = {"timeout": SECONDS, "retries": 0, "max_bytes": LARGEST}
    engine = OpenAITokenEngine(base_url=f"{url}/v1", model="m", tokenizer="none", **settings)
    engine.tokenizer = tokenizer()
    engine._written = lambda ids: ",".join(map(str, ids)).encode()  # type: ignore[assignment]
    engine.context = 128
    async with engine._client:
        sampled = await engine.sample([5, 6], Sampling(max_tokens=4))
    assert (sampled.ids, sampled.logps) == ((64, 65), (-0.5, -0.25))


async def judge(url: str) -> Any:
    table = EndpointTable(base_url=f"{url}/v1", model="m", timeout=SECONDS)
    backend = OpenAIBackend(table)
    await backend.start()
    try:
        response = await backend.send(json.dumps({"messages": []}).encode())
        answer = backend.answer(response)
    finally:
        await backend.stop()
    assert answer.text == '{"reason": "r", "score": 1}'


SCORES = {
    "choices": [{"index": 0, "finish_reason": "length", "text": "x"}],
    "prompt_logprobs": [
        None,
        {"6": {"logprob": -0.5, "rank": 1, "decoded_token": "'"}},
    ],
}


async def teacher(url: str) -> Any:
    scorer = ServerScorer(f"{url}/v1#m", tokenizer())
    settings: dict[str, Any] = {"timeout": SECONDS, "retries": 0, "max_bytes": LARGEST}
    scorer._client = OpenAIEngine(base_url=f"{url}/v1", model="m", **settings)
    async with scorer:
        (score,) = await scorer.score([TeacherRow(ids=(5, 6), positions=(1,))], 1.0, None)
    assert score.logp.tolist() == [-0.5]


@cache
def model() -> Any:
    return tiny_model(context=128)


def vllm_routes() -> dict[str, Any]:
    flags = {
        "model_config": {"logprobs_mode": "processed_logprobs"},
        "scheduler_config": {"async_scheduling": False},
    }
    return {
        "/health": {},
        "/server_info": {"vllm_config": flags},
        "/v1/models": MODEL,
        "/collective_rpc": {"results": [shape_of(model().config)]},
        "/inference/v1/generate": {
            "choices": [
                {
                    "index": 0,
                    "token_ids": [64, 65],
                    "finish_reason": "length",
                    "logprobs": {
                        "content": [
                            {"token_id": 64, "logprob": -0.5},
                            {"token_id": 65, "logprob": -0.25},
                        ]
                    },
                    "weight_versions": [{"version": "0", "start": 0, "end": 2}],
                }
            ]
        },
    }


async def vllm(url: str) -> Any:
    settings: dict[str, Any] = {"url": url, "canary": False, "timeout": SECONDS}
    engine = VLLMServer.sharing(model(), tokenizer(), **settings)
    engine.awaits_weights = True
    async with engine:
        sampled = await engine.sample([5, 6], Sampling(max_tokens=2))
    assert sampled == Sampled(ids=(64, 65), logps=(-0.5, -0.25), versions=(0, 0), finish="length")


async def nemo_gym(url: str) -> Any:
    async with gym_session(url, {}, seconds=SECONDS) as server:
        verified = _verified(await server.asked("verify", {"a": 1}), {})
    if verified.reward is None:
        raise RewardFault("no reward, which the reward of the environment raises")
    assert verified.reward == 1.0


async def openenv_tasks(url: str) -> Any:
    # a server without the path, 404 and 501, lists nothing
    assert await _list(url, SECONDS) in ({"train": ("train", 3)}, {})


async def openenv_schema(url: str) -> Any:
    _text_fields.clear()
    assert await _text_field(url, SECONDS) == ("message", True)


async def openenv_socket(url: str) -> Any:
    async with session(url, seconds=SECONDS, limit=asyncio.Semaphore(1)) as server:
        await server.reset()


async def mcp(url: str) -> Any:
    settings: dict[str, Any] = {"seconds": SECONDS, "start_seconds": 2 * SECONDS}
    server = McpServer(url=f"{url}/mcp", message_bytes=LARGEST, restarts=0, **settings)
    async with Mcp(servers={"kit": server}) as service, service.session() as session:
        result = await session.call("greet")
    if result.failed:  # which says of the tool alone that it is slow, or says too much
        assert "took over" in result.text or "(message_bytes)" in result.text
        raise ToolError(result.text)
    assert result.text == "hello"


async def collector(url: str) -> Any:
    spans = Spans()
    spans.add("step", 0, 3, step=7)
    exporter = Exporter(f"{url}/v1/traces", seconds=SECONDS)
    try:
        await asyncio.to_thread(exporter.post, spans.timeline())
    finally:
        exporter.close()


@dataclass
class Client:
    """What asks a server.

    Attributes:
        ask: everything that it asks once; it raises, or the answer was the right one.
        honest: right answers by path.
        path: that misbehaves.
        right: misbehaviours that leave the answer right.
    """

    ask: Callable[[str], Awaitable[Any]]
    honest: dict[str, Any]
    path: str


def clients() -> dict[str, Client]:
    chats = {"/v1/models": MODEL, "/v1/chat/completions": CHAT}
    gym = {"/seed_session": {}, "/verify": {"reward": 1.0}}
    listed = {
        "/list_environments": ["e"],
        "/e/splits": [{"name": "train", "type": "train"}],
        "/e/num_tasks": {"num_tasks": 3},
    }
    field = {"message": {"type": "string"}}
    schema = {"/schema": {"action": {"properties": field, "required": ["message"]}}}
    return {
        "chat": Client(chat, chats, "/v1/chat/completions"),
        "models": Client(chat, chats, "/v1/models"),
        "tokens": Client(
            tokens, {"/v1/models": MODEL, "/v1/completions": TOKENS}, "/v1/completions"
        ),
        "judge": Client(judge, chats, "/v1/chat/completions"),
        "teacher": Client(
            teacher, {"/v1/models": MODEL, "/v1/completions": SCORES}, "/v1/completions"
        ),
        "vllm": Client(vllm, vllm_routes(), "/inference/v1/generate"),
        "vllm_update": Client(vllm, vllm_routes(), "/update_weight_version"),
        "nemo_gym": Client(nemo_gym, gym, "/verify"),
        "nemo_gym_seed": Client(nemo_gym, gym, "/seed_session"),
        "openenv_tasks": Client(openenv_tasks, listed, "/list_environments"),
        "openenv_schema": Client(openenv_schema, schema, "/schema"),
        "openenv_socket": Client(openenv_socket, {}, "/ws"),
        "mcp": Client(mcp, {"/mcp": mcp_answer}, "tools/call"),
        "collector": Client(collector, {}, "/v1/traces"),
        "mcp_start": Client(mcp, {"/mcp": mcp_answer}, "initialize"),
    }


NAMES = (
    "chat", "models", "tokens", "judge", "teacher", "vllm", "vllm_update", "nemo_gym",
    "nemo_gym_seed", "openenv_tasks", "openenv_schema", "openenv_socket",
    "mcp", "mcp_start", "collector",
)  # fmt: skip
CORE = (
    "closes_at_once", "is_silent", "drips_the_body", "endless_body", "flood_of_1xx", "gzip_bomb",
    "smuggles", "redirects_307_{}/taken", "status_500", "status_429_nan", "deep_lists", "null",
    "two_answers_in_one_packet",
)  # fmt: skip


def outcome(name: str, how: str) -> tuple[object, HostileServer]:
    """What the client *name* raises, or nothing; and the server."""
    client = clients()[name]
    server = HostileServer(client.honest, client.path, MISBEHAVIOURS[how])

    async def run() -> object:
        async with server.up(), asyncio.timeout(PATIENCE):
            try:
                await client.ask(server.url)
            except QuintainError as e:
                return e
        return None

    return asyncio.run(run()), server


def check(name: str, how: str) -> None:
    raised, server = outcome(name, how)
    assert isinstance(raised, QuintainError | None)
    # No failure of a server is the policy's, which would be scored.
    if isinstance(raised, EpisodeError):
        assert type(raised).__name__ not in ("PolicyFault", "PolicyTimeout", "LimitReached")
    assert len(str(raised)) < 2000
    assert str(raised).isprintable()
    # A machine that stands still may end the time before the path is asked for.
    assert server.asked or raised
    assert server.taken == 0
    assert server.sent < SENT_AT_MOST


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_server_is_understood(name: str) -> None:
    """Without it, a client that refuses everything would pass."""

    async def honest(x: Any) -> None:
        await x.answer(x.honest)

    if name == "openenv_socket":
        pytest.skip("the tests of openenv have a server of it")
    client = clients()[name]

    async def run() -> None:
        async with HostileServer(client.honest, client.path, honest).up() as server:
            await client.ask(server.url)

    asyncio.run(run())


@pytest.mark.parametrize("how", CORE)
def test_a_core_of_misbehaviours_is_contained(how: str) -> None:
    for name in ("chat", "nemo_gym", "openenv_schema", "mcp"):
        check(name, how)


@pytest.mark.more
@pytest.mark.parametrize("how", MISBEHAVIOURS)
@pytest.mark.parametrize("name", NAMES)
def test_every_misbehaviour_is_contained_by_every_client(name: str, how: str) -> None:
    check(name, how)
