"""Simulated engines in the pool of replicas: failures, and prompts that a group shares."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quintain import Sampling
from quintain_scale.schedules import EnginePool
from quintain_simulate.clock import run_simulated
from quintain_simulate.costs import EngineCosts
from quintain_simulate.decoder import SimulatedTurn
from quintain_simulate.fleet import Cluster, SimulatedEngine, prompt_of


def pool_of(cluster: Cluster, replicas: int, **settings: Any) -> EnginePool:
    return EnginePool(
        engine=f"{SimulatedEngine.__module__}:SimulatedEngine",
        replicas=[{"cluster": cluster}] * replicas,
        slots=64,
        **settings,
    )


def turn(number: int, *, group: int, prompt: int = 0, tokens: int = 10) -> SimulatedTurn:
    return SimulatedTurn(group=group, shared=prompt, episode=number, prompt=prompt, tokens=tokens)


@pytest.mark.parametrize("restart", [5, 200])
def test_a_replica_that_fails_is_back_after_its_restart_with_its_decoder(restart: int) -> None:
    """A turn of 10 s fails after 3 s, waits for the only replica, and is sampled from the begin."""

    async def run() -> tuple[float, int]:
        cluster = Cluster(costs=EngineCosts(overhead=1.0), turns={7: turn(7, group=0)})
        loop = asyncio.get_running_loop()
        async with pool_of(cluster, 1) as pool:
            [decoder] = cluster.decoders
            loop.call_at(3, decoder.fail)
            loop.call_at(3 + restart, decoder.restart)
            await pool.sample(prompt_of(0, 7), Sampling())
            return loop.time(), len(cluster.decoders)

    assert run_simulated(run) == (pytest.approx(3 + restart + 10), 1)


def test_a_pool_computes_the_prompt_of_a_group_once() -> None:
    """Two groups of four on two replicas: each replica has the prompt of one."""

    async def run() -> float:
        cluster = Cluster(costs=EngineCosts(overhead=1.0, prefill=0.01))
        cluster.turns = {n: turn(n, group=n // 4, prompt=100) for n in range(8)}
        async with pool_of(cluster, 2) as pool:
            await asyncio.gather(*(pool.sample(prompt_of(n // 4, n), Sampling()) for n in range(8)))
        return sum(decoder.prefilled for decoder in cluster.decoders)

    assert run_simulated(run) == 2 * 100


def test_segments_of_a_turn_sample_all_of_its_tokens() -> None:
    """Ten tokens in segments of four."""

    async def run() -> tuple[int, float]:
        cluster = Cluster(costs=EngineCosts(overhead=1.0), turns={7: turn(7, group=0)})
        async with pool_of(cluster, 2, segment=4) as pool:
            sampled = await pool.sample(prompt_of(0, 7), Sampling())
        return int(sum(sampled.logps)), asyncio.get_running_loop().time()

    assert run_simulated(run) == (10, pytest.approx(10.0))
