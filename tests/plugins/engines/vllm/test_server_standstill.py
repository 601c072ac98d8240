"""A server that stands still is named and ends what waits for it; one with another model is never
touched.

The server is a process that speaks the protocol (`vllm_fake`), so that vLLM need not be installed;
SIGSTOP is real.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import quintain_engines.openai.client
import quintain_engines.vllm.server
from quintain import InfrastructureError, Message, Sampling
from quintain.errors import UsageError
from quintain.interfaces import Pressure
from quintain.learning import ModuleWeights
from quintain.models import HFTokenizer
from quintain.recipe import Recipe
from quintain.recipe.check import check_recipe
from quintain_engines.openai import ServerWatch
from quintain_engines.openai.client import OpenAIEngine
from quintain_engines.vllm import VLLMServer, WeightSyncError
from quintain_engines.vllm.handover import shape_of
from quintain_scale.schedules import EnginePool

from ....core.models.tiny import byte_tokenizer, tiny_model

ROOT = Path(__file__).parents[4]
MODEL = tiny_model(context=128)
TIMEOUT = 2.0


class Fake:
    """The process, and an engine over `MODEL` for it."""

    def __init__(self, *, port: int = 0, **shape: Any) -> None:
        words = [
            sys.executable,
            "-m",
            "tests.plugins.engines.vllm.fake",
            json.dumps({**shape_of(MODEL.config), **shape}),
            str(port),
        ]
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def engine(self) -> VLLMServer:
        settings: dict[str, Any] = {"url": self.url, "canary": False, "timeout": TIMEOUT}
        return VLLMServer.sharing(MODEL, HFTokenizer(byte_tokenizer()), **settings)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def ask(self, method: str, path: str) -> Any:
        async with aiohttp.request(method, f"{self.url}/{path}") as response:
            return await response.json()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    started = Fake()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _notice_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of chat completions after 0.8 s at most; an attempt may take longer."""

    def watch(server: str, *, timeout: float, **settings: Any) -> ServerWatch:
        return ServerWatch(server, timeout=timeout, notice=0.5, tick=0.1, **settings)

    def impatient(server: str, *, timeout: float, **settings: Any) -> ServerWatch:
        return watch(server, timeout=min(timeout, 0.8), **settings)

    monkeypatch.setattr(quintain_engines.vllm.server, "ServerWatch", watch)
    monkeypatch.setattr(quintain_engines.openai.client, "ServerWatch", impatient)


def test_what_a_server_says_of_itself(fake: Fake) -> None:
    """Sums over the engines behind it, and the fullest cache."""

    async def scenario() -> Pressure:
        async with fake.engine() as engine:
            await engine.probe()
            pressure = await engine.pressure()
            fake.process.kill()
            fake.process.wait()
            with pytest.raises(InfrastructureError, match=f"at {fake.url} does not answer /health"):
                await engine.probe()
            return pressure

    assert asyncio.run(scenario()) == Pressure(running=5, waiting=4, cache_used=0.5, preemptions=7)


def test_a_pool_takes_a_server_again_that_others_have_started_again(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the weights of its start; it gets no turn before it has those of now. What a start
    sends of a learner's module, which may be changing, is sent at the begin of the run alone.
    """
    begun: list[VLLMServer] = []
    begin = VLLMServer._begin

    async def counted(self: VLLMServer, weights: Any) -> None:
        begun.append(self)
        await begin(self, weights)

    monkeypatch.setattr(VLLMServer, "_begin", counted)
    other = Fake()
    port = int(fake.url.rpartition(":")[2])
    settings = {"canary": False, "timeout": TIMEOUT}
    pool = EnginePool.sharing(
        MODEL,
        HFTokenizer(byte_tokenizer()),
        engine="vllm-server",
        replicas=[{"url": fake.url}, {"url": other.url}],
        settings=settings,
        backoff=0.1,
        restarts=100,
    )
    again: list[Fake] = []

    async def scenario() -> list[Any]:
        async with pool:
            await pool.update(ModuleWeights(MODEL, 3))
            turns = [
                asyncio.create_task(pool.sample([k, 2], Sampling(max_tokens=20))) for k in range(4)
            ]
            await asyncio.sleep(0.05)
            fake.process.kill()
            fake.process.wait()
            replies = await asyncio.gather(*turns)
            assert pool._router.is_lost(0)
            again.append(await asyncio.to_thread(Fake, port=port))
            await pool._router.until(lambda: not pool._router.is_lost(0))
            calls = [pool.sample([k, 3], Sampling(max_tokens=2)) for k in range(4)]
            return [*replies, *await asyncio.gather(*calls)]

    try:
        replies = asyncio.run(scenario())
    finally:
        for server in (other, *again):
            server.close()
    assert [set(reply.versions) for reply in replies] == [{3}] * 8
    assert len(begun) == 2


def test_turns_on_a_stopped_server_are_named_and_fail(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[Any]:
        async with fake.engine() as engine:
            turns = [
                asyncio.create_task(engine.sample([1, 2], Sampling(max_tokens=100)))
                for _ in range(3)
            ]
            await asyncio.sleep(0.2)
            fake.send(signal.SIGSTOP)
            return await asyncio.gather(*turns, return_exceptions=True)

    for failure in asyncio.run(scenario()):
        assert isinstance(failure, InfrastructureError)
        assert (
            f"at {fake.url} stands still: no answer to tokens for 2 s (engine.args.timeout)"
            in str(failure)
        )
    (notice,) = [
        record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()
    ]
    assert f"the server of vLLM at {fake.url}" in notice
    assert "waiting for 3 x tokens" in notice


async def reply_of(fake: Fake, meanwhile: Callable[[], None]) -> Any:
    """What a server of chat completions answers, after *meanwhile* was called while it works."""
    async with OpenAIEngine(base_url=f"{fake.url}/v1", timeout=30.0) as engine:
        turn = asyncio.create_task(engine.reply((Message("user", "hello"),), (), Sampling()))
        await asyncio.sleep(0.2)
        meanwhile()
        return await turn


def test_a_stopped_server_of_chat_completions_is_named_and_fails(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where retries would go on: an attempt takes 30 s here."""
    message = f"the server at {fake.url}/v1 stands still: no answer to POST"
    with pytest.raises(InfrastructureError, match=message):
        asyncio.run(reply_of(fake, lambda: fake.send(signal.SIGSTOP)))

    notices = [record.getMessage() for record in caplog.records]
    assert any("waiting for 1 x POST /chat/completions" in notice for notice in notices)


def test_a_slow_answer_of_a_server_of_chat_completions_is_awaited(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    assert asyncio.run(reply_of(fake, lambda: None)).text == "late"
    assert not caplog.records


@pytest.mark.slow
def test_a_weight_update_of_a_stopped_server_fails_and_names_its_call(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with fake.engine() as engine:
            fake.send(signal.SIGSTOP)
            await engine.update(ModuleWeights(MODEL, 1))

    with pytest.raises(InfrastructureError, match=r"stands still: no answer to pause for 2 s"):
        asyncio.run(scenario())
    assert any("waiting for 1 x pause" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_a_server_that_goes_on_and_a_long_turn_are_left_alone(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn takes longer than the timeout, and the stop is shorter."""

    async def scenario() -> Any:
        async with fake.engine() as engine:
            turn = asyncio.create_task(engine.sample([1, 2], Sampling(max_tokens=120)))
            await asyncio.sleep(0.2)
            fake.send(signal.SIGSTOP)
            await asyncio.sleep(1.2)
            fake.send(signal.SIGCONT)
            first = await turn
            assert await engine.update(ModuleWeights(MODEL, 1)) == 1
            return first, await engine.sample([1, 2], Sampling(max_tokens=100))

    first, second = asyncio.run(scenario())
    assert len(first.ids) == 120
    assert set(second.versions) == {1}
    assert any("answers again after" in record.getMessage() for record in caplog.records)


def test_another_model_is_refused_before_anything_is_sent() -> None:
    other = Fake(hidden_size=64, num_hidden_layers=9)

    async def scenario() -> Any:
        with pytest.raises(
            UsageError, match=rf"hidden_size 64 instead of {MODEL.config.hidden_size}, .*layers 9"
        ):
            async with other.engine():
                raise AssertionError("it must not be entered")
        return await other.ask("GET", "is_paused")

    try:
        assert asyncio.run(scenario()) == {"is_paused": False}
    finally:
        other.close()


def test_an_update_that_fails_leaves_the_server_running(fake: Fake) -> None:
    """Its other clients go on; the message has the server's words."""

    async def scenario() -> Any:
        async with fake.engine() as engine:
            await fake.ask("POST", "refuse")
            with pytest.raises(WeightSyncError, match="version 1, and has neither .*Worker failed"):
                await engine.update(ModuleWeights(MODEL, 1))
        return await fake.ask("GET", "is_paused")

    assert asyncio.run(scenario()) == {"is_paused": False}


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_workers_in_this_process_are_refused_by_the_check_of_a_recipe(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would wait for them for ever; behind a server they work."""
    recipe = Recipe.of(
        {
            "environments": [{"use": "tests.core.run.everything:Word"}],
            "engine": {"use": "vllm", "args": {"options": {name: 2}}},
        }
    )
    with pytest.raises(
        UsageError, match=rf'options\.{name} is 2.*engine\.use = "vllm-server".*{name} = 2'
    ):
        check_recipe(recipe)
    # vLLM itself need not be here
    monkeypatch.setattr(quintain_engines.vllm.server, "check_installed", lambda: None)
    check_recipe(recipe.replace({"engine.use": "vllm-server"}))
