"""vLLM behind a server: the same tokens, log-probs, versions and checks as in this process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")


from quintain import LimitReached, Sampling
from quintain.errors import UsageError
from quintain_engines.vllm import SleepUnsupportedError, UndeliveredError, VLLMServer
from quintain_engines.vllm.server import _check_flags
from quintain_engines.vllm.transports import File
from quintain_scale.schedules.presets import Areal, OneStepOff, Pipeline

from ....core.models.tiny import tiny_model
from .kit import TOKENIZER, Running, adapted, adapters_arrive, plain_logps, prompts
from .test_sync import Other, follow

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A server that the engine starts; it closes connections after a second without a request, not
    after five.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
        started = Running(tiny_model(hidden=128), VLLMServer)
    yield started
    started.close()


def test_log_probs_agree_with_a_plain_forward(running: Running) -> None:
    temperatures = (1.0, 0.7)
    calls = [
        (ids, Sampling(seed=i, temperature=temperatures[i % 2], max_tokens=20))
        for i, ids in enumerate(prompts(24))
    ]
    for (ids, sampling), out in zip(calls, running.sample(*calls), strict=True):
        expected = plain_logps(running.model, ids, out.ids, sampling.temperature)
        assert list(out.logps) == pytest.approx(expected, abs=1e-4)
        assert out.versions == (0,) * len(out.ids)


def test_seeds_stops_and_limits(running: Running) -> None:
    sampling = Sampling(seed=3, max_tokens=30)
    first, again = running.sample(([1, 2], sampling), ([1, 2], sampling))
    assert first.ids == again.ids
    place = next(i for i, token in enumerate(first.ids) if i >= 4 and token not in first.ids[:i])
    stop = TOKENIZER.decode(first.ids[place : place + 1])
    by_id, by_text = running.sample(
        ([1, 2], sampling.replace(stop_ids=(first.ids[place],))),
        ([1, 2], sampling.replace(stop=("never", stop))),
    )
    assert by_id.finish == "stop"
    assert by_id.stop == first.ids[place]
    assert by_id.ids == first.ids[: place + 1]
    if stop.isascii():
        assert by_text.finish == "stop"
        assert by_text.stop == stop
        assert by_text.ids == first.ids[: place + 1]
    with pytest.raises(LimitReached):
        running.sample(([1] * 512, Sampling()))


def test_scores_are_those_of_a_plain_forward(running: Running) -> None:
    ids = [(7 * i) % 256 for i in range(40)]
    for start, temperature in [(1, 1.0), (30, 0.7), (39, 1.0)]:
        scores = running.do(running.engine.score(ids, start, temperature))
        assert scores == pytest.approx(
            plain_logps(running.model, ids[:start], ids[start:], temperature), abs=2e-4
        )


def test_connections_that_the_server_closes_are_replaced(running: Running) -> None:
    """While the learner computes, the event loop stands still, and nobody notices that a connection
    was closed.
    """
    engine, sampling = running.engine, Sampling(seed=3, max_tokens=3)

    async def learn_between() -> None:
        first = await engine.sample([1], sampling)
        time.sleep(1.5)  # noqa: ASYNC251 -- the learner would compute here
        assert await engine.sample([1], sampling) == first
        time.sleep(1.5)  # noqa: ASYNC251 -- the learner would compute here
        assert await engine.update(Other(running.model, 0)) == 0

    running.do(learn_between())


def test_a_cancelled_request_is_aborted(running: Running) -> None:
    async def cancel() -> str:
        task = asyncio.create_task(running.engine.sample([5], Sampling(seed=0)))
        await asyncio.sleep(0)
        await running.engine._request("GET", "health")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*getattr(running.engine, "_aborts", ()))
        return await running.engine._request("GET", "health")

    assert running.do(cancel()) == ""


def test_a_second_engine_uses_the_url(running: Running) -> None:
    """With other weights: the server is one, and has those of the last update."""
    other = Running(tiny_model(hidden=128, seed=5), VLLMServer, url=running.engine._url)
    try:
        (out,) = other.sample(([3], Sampling(seed=1, max_tokens=5)))
        assert list(out.logps) == pytest.approx(plain_logps(other.model, [3], out.ids), abs=1e-4)
    finally:
        other.close()
    running.do(running.engine.update(Other(running.model, 0)))


def test_another_model_at_the_url_is_refused_and_leaves_the_server_as_it_is(
    running: Running,
) -> None:
    """Before a weight is sent, so that the server is neither paused nor half loaded."""
    first = running.sample(([1, 2], Sampling(seed=3, max_tokens=5)))
    with pytest.raises(UsageError, match="hidden_size 128 instead of 64"):
        Running(tiny_model(hidden=64), VLLMServer, url=running.engine._url)
    assert running.sample(([1, 2], Sampling(seed=3, max_tokens=5))) == first


def test_tokens_are_signs_of_life(running: Running) -> None:
    """The server counts them; between requests the count stands still."""
    before = running.do(running.engine._progress(30.0))
    assert isinstance(before, tuple)
    assert before == running.do(running.engine._progress(30.0))
    running.sample(([1, 2], Sampling(seed=3, max_tokens=5)))
    assert running.do(running.engine._progress(30.0)) not in (before, None)


def test_a_server_with_other_log_probs_or_versions_is_refused(running: Running) -> None:
    """vLLM's defaults: log-probs before the temperature, and steps that are scheduled before the
    last one ended.
    """
    info = json.loads(
        running.do(running.engine._request("GET", "server_info", config_format="json"))
    )
    _check_flags(info)
    config = info["vllm_config"]
    config["scheduler_config"]["async_scheduling"] = True
    with pytest.raises(UsageError, match=r"start it with --no-async-scheduling"):
        _check_flags(info)
    config["model_config"]["logprobs_mode"] = "raw_logprobs"
    with pytest.raises(
        UsageError, match=r"--logprobs-mode processed_logprobs .* and --no-async-scheduling"
    ):
        _check_flags(info)


@pytest.mark.parametrize("schedule", [Areal(), Pipeline()])
def test_updates_in_flight(running: Running, schedule: Any) -> None:
    """With fresh keys and values, log-probs are those of the version that sampled; with stale ones
    of neither.
    """
    models = {v: tiny_model(hidden=128, seed=v) for v in (1, 2)}
    prompt = [(7 * i) % 256 for i in range(60)]
    fields = {"temperature": 0.0, "max_tokens": 400, "logprobs": 0, "ignore_eos": True}
    engine = running.engine
    follow(engine, schedule)

    async def in_flight() -> Any:
        await engine.update(Other(models[1], 1))
        reply = asyncio.create_task(engine._generate(prompt, fields))
        for _ in range(3):  # it has some tokens then
            await engine._generate(prompt, fields | {"max_tokens": 20})
        await engine.update(Other(models[2], 2))
        return await reply

    answer = running.do(in_flight())
    spans = [(int(v), start, end) for v, start, end in answer.spans]
    assert [v for v, _, _ in spans] == [1, 2]
    assert spans[-1][2] == 400
    off = {}
    for version, start, end in spans:
        own = plain_logps(models[version], [*prompt, *answer.ids[:start]], answer.ids[start:end])
        off[version] = max(abs(a - b) for a, b in zip(own, answer.logps[start:end], strict=True))
    assert off[1] < 1e-3
    assert (off[2] < 1e-3) == schedule.recompute_kv


def test_an_update_waits_for_the_end_of_turns(running: Running) -> None:
    """Without updates in flight."""
    models = {v: tiny_model(hidden=128, seed=v) for v in (0, 1)}
    follow(running.engine, OneStepOff())

    async def turns() -> list[Any]:
        await running.engine.update(Other(models[0], 0))
        first = asyncio.create_task(running.engine.sample([1], Sampling(seed=1, max_tokens=100)))
        await asyncio.sleep(0)
        update = asyncio.create_task(running.engine.update(Other(models[1], 1)))
        await asyncio.sleep(0)
        late = await running.engine.sample([1], Sampling(seed=1, max_tokens=5))
        assert await update == 1
        return [await first, late]

    for version, out in enumerate(running.do(turns())):
        assert out.versions == (version,) * len(out.ids)
        assert list(out.logps) == pytest.approx(
            plain_logps(models[version], [1], out.ids), abs=1e-3
        )


def test_a_tensor_that_did_not_arrive_is_named(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {3: tiny_model(hidden=128, seed=3)}
    send = File.send
    name = "model.layers.0.self_attn.o_proj.weight"
    wrong = {name: models[3].state_dict()[name].clone().normal_(0, 0.15)}

    async def mislead(self: File, control: Any, tensors: Any) -> None:
        await send(self, control, dict(tensors) | wrong)

    monkeypatch.setattr(File, "send", mislead)
    with pytest.raises(UndeliveredError) as error:
        running.do(running.engine.update(Other(models[3], 3)))
    assert error.value.part == name


def test_adapters_alone_are_exact() -> None:
    """The frozen weights are those that the server starts with; the adapters are transferred, also
    in flight.
    """
    running = Running(adapted(), VLLMServer, adapters=True)
    ids = [(7 * i) % 256 for i in range(60)]
    try:
        for version in (1, 2):
            adapters_arrive(running, ids, version)
        assert len(running.engine.differences) == 4  # one of the probe
        folder = running.engine._adapter
        assert sorted(folder.parent.glob("quintain-adapter-*")) == [folder]
    finally:
        running.close()
    assert not folder.exists()


def test_sleep_and_transports_that_are_refused(running: Running) -> None:
    with pytest.raises(SleepUnsupportedError):
        running.do(running.engine.sleep(2))
    with pytest.raises(UsageError, match="takes file, ipc, nccl"):
        VLLMServer.sharing(running.model, TOKENIZER, transport="memory")
    with pytest.raises(UsageError, match="transport_args of 'file'"):
        VLLMServer.sharing(running.model, TOKENIZER, transport_args={"fold": "/tmp"})


def test_a_server_without_its_parent_does_not_start() -> None:
    environment = {**os.environ, "QUINTAIN_VLLM_PARENT": "1"}
    command = [sys.executable, "-m", "quintain_engines.vllm.serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.strip() == "the process that started this server has ended"


def test_the_server_ends_with_the_engine(running: Running) -> None:
    """Last: nothing listens, and no file is left."""
    engine = running.engine
    port, log, folder = int(engine._url.rpartition(":")[2]), engine._log, engine._folder
    running.do(engine.__aexit__())
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
    assert not Path(log).exists()
    assert not Path(folder).exists()
    assert not list(Path("/dev/shm").glob("quintain-weights-*"))
