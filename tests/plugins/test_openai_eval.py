"""`quintain eval` against a local server, through the plugin's engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from quintain.registry.lookup import isolated

from ..core.test_evaluate import Doubling, called


@pytest.fixture
def plugins() -> Iterator[None]:
    with isolated(keep=["quintain", "quintain-openai"]) as registry:
        registry.add("environment", "doubling", Doubling)
        yield


@contextlib.contextmanager
def a_server() -> Iterator[str]:
    """A local OpenAI-compatible server in another thread that can double."""

    async def chat(request: Any) -> Any:
        body = await request.json()
        n = int(body["messages"][-1]["content"].split()[0])
        message = {"role": "assistant", "content": str(2 * n if n % 2 else 0)}
        return web.json_response(
            {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
        )

    async def models(request: Any) -> Any:
        return web.json_response({"data": [{"id": "doubler"}]})

    loop, ready, address = asyncio.new_event_loop(), threading.Event(), []

    async def serve(stop: asyncio.Event) -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(stop)))
    thread.start()
    try:
        assert ready.wait(10)
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@pytest.mark.usefixtures("plugins")
def test_eval_against_a_local_server(capsys: pytest.CaptureFixture[str]) -> None:
    with a_server() as url:
        status, out, _ = called(capsys, "doubling", "--engine", url, "--json", "--arg", "size=8")
    found = json.loads(out)
    assert status == 0
    assert (found["pass@1"], found["engine"], found["tokens"]) == (0.5, "openai:doubler", 3)


@pytest.mark.usefixtures("plugins")
def test_eval_against_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--engine-arg", "retries=0"]
    status, out, err = called(capsys, "doubling", "--engine", "http://127.0.0.1:1", *quick)
    assert (status, out) == (1, "") and "http://127.0.0.1:1/v1/models failed" in err
