"""Streams that wait for the policy: a sign of life, and what fails after it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from quintain import InfrastructureError, Sampling
from quintain_gateway.server import ALIVE, Server

from .kit import Client, Slow, client, talk, until

BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": talk("?")},
    "/messages": {"messages": talk("?"), "max_tokens": 50},
    "/responses": {"input": "?"},
}
APIS = pytest.mark.parametrize("path", BODIES)


class Failing(Slow):
    """Fails when it is let go."""

    async def sample(self, ids: Any, sampling: Sampling) -> Any:
        await super().sample(ids, sampling)
        raise InfrastructureError("the card is gone")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs come at once."""
    monkeypatch.setattr(Server, "keep_alive", 0.01)


def asked(c: Client, path: str, **more: Any) -> Any:
    """The response to a request, when its status is there."""
    head = {"Authorization": f"Bearer {c.endpoint.api_key}"}
    body = {"model": "m", **BODIES[path], **more}
    return c.http.post(c.endpoint.base_url + path, json=body, headers=head)


async def signs(answer: aiohttp.ClientResponse, number: int) -> None:
    """Read so many signs of life, and nothing else."""
    assert await answer.content.readexactly(number * len(ALIVE)) == ALIVE * number


@APIS
@pytest.mark.usefixtures("eager")
def test_a_stream_that_waits_says_so_and_then_is_as_ever(path: str) -> None:
    async def run() -> tuple[str, str]:
        engine = Slow()
        async with client(engine=engine) as c, asked(c, path, stream=True) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            await signs(answer, 3)
            assert engine.running == 1
            engine.go.set()
            waited = (await answer.text()).replace(ALIVE.decode(), "")
        async with client("late") as c, asked(c, path, stream=True) as answer:
            return waited, (await answer.text()).replace(ALIVE.decode(), "")

    waited, at_once = asyncio.run(run())
    assert kinds(waited) == kinds(at_once)
    assert "late" in waited


def kinds(events: str) -> list[Any]:
    """What an event is, without ids and times."""
    data = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data")]
    read = [json.loads(line) for line in data if line != "[DONE]"]
    return [(d.get("type"), sorted(d)) for d in read]


@APIS
@pytest.mark.usefixtures("eager")
def test_what_fails_after_a_sign_is_an_error_in_the_stream(path: str) -> None:
    async def run() -> Any:
        engine = Failing()
        async with client(engine=engine) as c, asked(c, path, stream=True) as answer:
            await signs(answer, 1)
            engine.go.set()
            text = (await answer.text()).replace(ALIVE.decode(), "")
            assert isinstance(c.endpoint.failure, InfrastructureError)
            return text

    text = asyncio.run(run())
    head, _, data = text.strip().rpartition("data: ")
    assert head == ("" if path == "/chat/completions" else "event: error\n")
    assert "the card is gone" in json.loads(data)["error"]["message"]


@APIS
def test_what_fails_before_the_first_sign_has_its_status(path: str) -> None:
    async def run() -> tuple[int, str]:
        engine = Failing()
        engine.go.set()
        async with client(engine=engine) as c, asked(c, path, stream=True) as answer:
            return answer.status, answer.content_type

    assert asyncio.run(run()) == (503, "application/json")


@APIS
@pytest.mark.usefixtures("eager")
def test_an_answer_that_is_no_stream_has_no_signs_and_its_status(path: str) -> None:
    async def run() -> tuple[int, Any]:
        engine = Failing()
        async with client(engine=engine) as c:

            async def ask() -> tuple[int, Any]:
                async with asked(c, path) as answer:
                    return answer.status, await answer.json()

            asking = asyncio.create_task(ask())
            await until(lambda: engine.running)
            await asyncio.sleep(0.1)
            engine.go.set()
            return await asking

    status, body = asyncio.run(run())
    assert status == 503
    assert "the card is gone" in body["error"]["message"]


@pytest.mark.usefixtures("eager")
def test_a_client_that_leaves_after_a_sign_cancels_the_sampling() -> None:
    async def run() -> None:
        engine = Slow()
        async with client(engine=engine) as c:
            async with asked(c, "/chat/completions", stream=True) as answer:
                await signs(answer, 1)
                answer.close()
            await until(lambda: engine.cancelled)
            await until(lambda: not c.endpoint.busy)
            engine.go.set()
            assert (await c.chat("?"))["content"] == "late"
            assert list(c.branches.values()) == [1]

    asyncio.run(run())


@pytest.mark.usefixtures("eager")
def test_the_end_of_an_episode_ends_its_streams_with_an_error() -> None:
    async def run() -> str:
        engine = Slow()
        async with client(engine=engine) as c, asked(c, "/responses", stream=True) as answer:
            await signs(answer, 1)
            await c.endpoint.close()
            return (await answer.text()).replace(ALIVE.decode(), "")

    assert json.loads(asyncio.run(run()).partition("data: ")[2])["code"] == "episode_over"


@pytest.mark.more
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.usefixtures("eager")
def test_the_official_clients_wait_and_raise_what_fails_late(api: str) -> None:
    package = pytest.importorskip("anthropic" if api == "messages" else "openai")

    async def run(engine: Slow) -> str:
        async with client(engine=engine) as c:
            base = c.endpoint.base_url
            url = base.removesuffix("/v1") if api == "messages" else base
            kind = package.AsyncAnthropic if api == "messages" else package.AsyncOpenAI
            async with kind(base_url=url, api_key=c.endpoint.api_key, max_retries=0) as ai:
                say: Any = {"model": "m", "stream": True}
                if api == "responses":
                    stream = await ai.responses.create(input="?", **say)
                elif api == "chat":
                    stream = await ai.chat.completions.create(messages=talk("?"), **say)
                else:
                    stream = await ai.messages.create(messages=talk("?"), max_tokens=9, **say)
                engine.go.set()
                return "".join([str(event) async for event in stream])

    assert "late" in asyncio.run(run(Slow()))
    with pytest.raises(package.APIError, match="the card is gone"):
        asyncio.run(run(Failing()))
