"""The simulated engine: closed forms, conservation, versions, memory, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quintain import InfrastructureError
from quintain_simulate.clock import run_simulated
from quintain_simulate.costs import EngineCosts
from quintain_simulate.decoder import SimulatedDecoder, SimulatedTurn


def turn(number: int = 0, *, prompt: float = 0, tokens: int = 10, **fields: Any) -> SimulatedTurn:
    about = {"group": number, "shared": 0.0, "episode": number} | fields
    return SimulatedTurn(prompt=prompt, tokens=tokens, **about)


async def decode(decoder: SimulatedDecoder, *turns: SimulatedTurn) -> None:
    """Decode *turns*, which begin at once."""
    for each in turns:
        each.done = asyncio.get_running_loop().create_future()
        decoder.submit(each)
    await asyncio.gather(*(each.done for each in turns if each.done is not None))


def seconds(costs: EngineCosts, *turns: SimulatedTurn) -> float:
    """Return the seconds in which one engine decodes *turns*."""

    async def run() -> float:
        await decode(SimulatedDecoder(costs), *turns)
        return asyncio.get_running_loop().time()

    return run_simulated(run)


def on_clock(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return run_simulated(run)


def test_one_turn_takes_its_prompt_and_its_steps() -> None:
    """Overhead, weights and sequence count for each token, the prompt once."""
    costs = EngineCosts(overhead=0.5, weights=0.25, sequence=0.25, prefill=0.125)
    assert seconds(costs, turn(prompt=8, tokens=10)) == pytest.approx(1.0 + 10 * 1.0)


def test_context_costs_the_sum_of_what_each_step_reads() -> None:
    """The context grows by a token a step, so n steps read n * p + n^2 / 2 tokens."""
    costs = EngineCosts(overhead=1.0, context=0.01)
    assert seconds(costs, turn(prompt=100, tokens=20)) == pytest.approx(
        20 * 1.0 + 0.01 * (20 * 100 + 20 * 20 / 2)
    )


def test_a_batch_of_equal_turns_takes_as_long_as_its_steps() -> None:
    """64 turns of equal length in 64 slots end together; in 32 slots they take two rounds."""
    turns = [turn(number, tokens=100) for number in range(64)]
    assert seconds(EngineCosts(overhead=0.1, sequence=0.01, slots=64), *turns) == pytest.approx(
        100 * (0.1 + 0.64)
    )
    turns = [turn(number, tokens=100) for number in range(64)]
    assert seconds(EngineCosts(overhead=0.1, sequence=0.01, slots=32), *turns) == pytest.approx(
        2 * 100 * (0.1 + 0.32)
    )


def test_computing_hides_reading_in_large_batches_alone() -> None:
    """A step takes the longer of reading the weights and multiplying them with each token."""
    costs = EngineCosts(weights=1.0, compute=0.25)
    assert [costs.step(count) for count in (1, 4, 8)] == [1.0, 1.0, 2.0]


def test_a_group_computes_its_prompt_once() -> None:
    """Turns of one group share the prompt; of several groups each computes its own."""
    costs = EngineCosts(prefill=1.0)
    together = [turn(n, group="a", shared=100, prompt=100, tokens=1) for n in range(4)]
    apart = [turn(n, group=n, shared=100, prompt=100, tokens=1) for n in range(4)]
    assert seconds(costs, *together) == pytest.approx(100)
    assert seconds(costs, *apart) == pytest.approx(400)


def test_a_later_turn_computes_what_is_new_until_new_weights_arrive() -> None:
    """The cache has the earlier turns of an episode; an update empties it."""

    async def run() -> list[float]:
        decoder = SimulatedDecoder(EngineCosts(prefill=1.0))
        await decode(decoder, turn(prompt=100, tokens=50))
        first = decoder.prefilled
        await decode(decoder, turn(prompt=160, tokens=50))
        second = decoder.prefilled - first
        await decoder.take(1, 0.0, recompute=True)
        await decode(decoder, turn(prompt=220, tokens=50))
        return [first, second, decoder.prefilled - first - second]

    assert on_clock(run) == pytest.approx([100, 10, 220])


@pytest.mark.parametrize("recompute", [True, False])
def test_tokens_carry_the_version_that_sampled_them(recompute: bool) -> None:
    """An update in flight splits a turn where it arrives, pauses it, and loses no token."""

    async def run() -> tuple[Any, float]:
        decoder = SimulatedDecoder(EngineCosts(overhead=1.0, prefill=0.1))
        running = turn(prompt=20, tokens=10)
        task = asyncio.create_task(decode(decoder, running))
        await asyncio.sleep(2.0 + 4.0)
        await decoder.take(7, 3.0, recompute=recompute)
        await task
        return running.spans, asyncio.get_running_loop().time()

    spans, took = on_clock(run)
    assert spans == [(0, 4), (7, 6)]
    assert took == pytest.approx(2 + 10 + 3 + (2.4 if recompute else 0))


def test_a_full_memory_makes_the_last_turn_give_way_and_loses_nothing() -> None:
    """Two turns whose contexts do not fit at once both end, one after the other."""

    async def run() -> tuple[int, int, float]:
        decoder = SimulatedDecoder(EngineCosts(overhead=1.0, capacity=100))
        turns = [turn(number, prompt=20, tokens=60) for number in range(2)]
        await decode(decoder, *turns)
        return decoder.preempted, decoder.tokens, sum(each.sampled for each in turns)

    preempted, tokens, sampled = on_clock(run)
    assert preempted >= 1
    assert tokens == sampled == 120


def test_an_engine_that_goes_down_fails_its_turns_and_comes_back_empty() -> None:
    """Turns get an infrastructure error, also new ones, until the engine answers again."""

    async def run() -> tuple[str, bool, int]:
        decoder = SimulatedDecoder(EngineCosts(overhead=1.0))
        task = asyncio.create_task(decode(decoder, turn(tokens=10)))
        await asyncio.sleep(3)
        decoder.fail()
        try:
            await task
        except InfrastructureError as error:
            text = str(error)
        try:
            decoder.submit(turn())
        except InfrastructureError:
            refused = True
        decoder.restart()
        again = turn(tokens=10)
        await decode(decoder, again)
        return text, refused, again.sampled

    assert on_clock(run) == ("the simulated engine went down", True, 10)


def test_steps_and_seconds_are_inverse() -> None:
    """As many steps as seconds have room for take these seconds."""
    costs = EngineCosts(overhead=0.01, sequence=1e-4, context=1e-7)
    steps = costs.steps_in(12.5, 40, 30_000)
    assert costs.seconds_of(steps, 40, 30_000) == pytest.approx(12.5)
