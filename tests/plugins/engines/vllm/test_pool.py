"""A pool of two servers of vLLM: one version, exact log-probs, and no turn is lost when a server
dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

from quintain import Sampling
from quintain_scale.schedules import Areal, EnginePool, OneStepOff

from ....core.models.tiny import tiny_model
from .kit import TOKENIZER, Running, plain_logps, prompts
from .test_sync import Other, follow

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own
CALLS = [(ids, Sampling(seed=i, max_tokens=20)) for i, ids in enumerate(prompts(8))]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    started = Running(tiny_model(hidden=128), EnginePool, engine="vllm-server", count=2)
    yield started
    started.close()


def is_exact(out: Any, model: Any, ids: list[int], version: int) -> bool:
    return out.versions == (version,) * len(out.ids) and list(out.logps) == pytest.approx(
        plain_logps(model, ids, out.ids), abs=1e-4
    )


def test_turns_go_to_both_servers_and_are_exact(running: Running) -> None:
    before = [replica._count for replica in running.engine._replicas]
    outs = running.sample(*CALLS)

    assert all(
        is_exact(out, running.model, ids, 0) for out, (ids, _) in zip(outs, CALLS, strict=True)
    )
    assert [r._count - b for r, b in zip(running.engine._replicas, before, strict=True)] == [4, 4]
    ids = [*CALLS[0][0], *outs[0].ids]
    assert running.do(running.engine.score(ids, 1)) == pytest.approx(
        plain_logps(running.model, ids[:1], ids[1:]), abs=2e-4
    )


def test_urls_of_servers_that_run(running: Running) -> None:
    """A pool of its own weights over the same servers, which get those of the last update."""
    urls = [{"url": replica._url} for replica in running.engine._replicas]
    other = Running(tiny_model(hidden=128, seed=5), EnginePool, engine="vllm-server", replicas=urls)
    try:
        for out, (ids, _) in zip(other.sample(*CALLS[:2]), CALLS, strict=False):
            assert is_exact(out, other.model, ids, 0)
    finally:
        other.close()
    running.do(running.engine.update(Other(running.model, 0)))


def test_updates_in_flight_reach_both(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "stop_ids", ())
    models = {v: tiny_model(hidden=128, seed=v) for v in (1, 2)}
    follow(running.engine, Areal())
    first = [(7 * i) % 256 for i in range(60)]

    async def in_flight() -> list[Any]:
        engine = running.engine
        await engine.update(Other(models[1], 1))
        long = Sampling(max_tokens=400)
        turns = [
            asyncio.create_task(engine.sample([k, *first], long.replace(seed=k))) for k in range(4)
        ]
        for replica in engine._replicas:  # it has some tokens then
            await replica._generate(
                first, {"temperature": 0.0, "max_tokens": 20, "logprobs": 0, "ignore_eos": True}
            )
        assert await engine.update(Other(models[2], 2)) == 2
        return await asyncio.gather(*turns)

    outs = running.do(in_flight())
    assert {1, 2} == {v for out in outs for v in out.versions}
    for k, out in enumerate(outs):
        assert list(out.versions) == sorted(out.versions)
        own = {v: plain_logps(models[v], [k, *first], out.ids) for v in models}
        assert list(out.logps) == pytest.approx(
            [own[v][at] for at, v in enumerate(out.versions)], abs=1e-3
        )
    assert [replica.version for replica in running.engine._replicas] == [2, 2]
    assert [replica.differences[-1] < 1e-3 for replica in running.engine._replicas] == [True, True]


def test_a_server_that_is_killed_loses_no_turn(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last: its turns begin again on the other, with the same seeds; updates go on with that one
    alone.
    """
    monkeypatch.setattr(TOKENIZER, "stop_ids", ())
    model, engine = tiny_model(hidden=128, seed=3), running.engine
    replicas = engine._replicas
    follow(engine, OneStepOff())
    calls = [([k, 5], Sampling(seed=k, max_tokens=200)) for k in range(6)]

    async def kill() -> list[Any]:
        await engine.update(Other(model, 3))
        turns = [asyncio.create_task(engine.sample(*call)) for call in calls]
        await asyncio.sleep(0)
        await replicas[0]._request("GET", "health")
        assert any(turn.replica == 0 for turn in engine._router._turns)
        os.killpg(replicas[0]._process.pid, signal.SIGKILL)
        return await asyncio.gather(*turns)

    outs = running.do(kill())
    assert [is_exact(out, model, ids, 3) for out, (ids, _) in zip(outs, calls, strict=True)] == [
        True
    ] * 6
    assert [out.ids for out in outs] == [out.ids for out in running.sample(*calls)]
    assert running.do(engine.update(Other(model, 4))) == 4
    assert engine._router.is_lost(0) is True
    assert engine._router.is_lost(1) is False
    assert {(4,) * len(out.ids) for out in running.sample(*calls)} == {
        (4,) * len(out.ids) for out in outs
    }
