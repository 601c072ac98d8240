"""Requests to a server that stands still: a line after a while, a typed failure after the timeout,
no false alarm.
"""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from quintain import InfrastructureError
from quintain_engines.openai import ServerWatch


def watch(timeout: float, signs: object = None) -> ServerWatch:
    """A watch of a server whose sign of life is *signs*, or, of a list, the next of it."""

    async def sign_of_life(_seconds: float) -> object:
        return (
            signs.pop(0)
            if isinstance(signs, list) and signs
            else None
            if isinstance(signs, list)
            else signs
        )

    settings = {"setting": "engine.args.timeout", "sign_of_life": sign_of_life}
    return ServerWatch("the server", timeout=timeout, notice=0.1, tick=0.02, **settings)


@pytest.mark.parametrize("may_take_longer", [True, False])
def test_a_silent_server_is_named_once_and_then_fails_all_that_wait(
    may_take_longer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[BaseException | None]:
        watched = watch(0.3, signs="always the same")

        async def wait() -> None:
            async with watched.request("a turn", may_take_longer=may_take_longer):
                await asyncio.sleep(600)

        return await asyncio.gather(wait(), wait(), return_exceptions=True)

    for failure in asyncio.run(scenario()):
        assert isinstance(failure, InfrastructureError)
        assert (
            str(failure)
            == "the server stands still: no answer to a turn for 0.3 s (engine.args.timeout)"
        )
    (notice,) = [record.getMessage() for record in caplog.records]
    assert "waiting for 2 x a turn; a request fails after 0.3 s (engine.args.timeout)" in notice


def test_signs_of_life_keep_a_long_turn_but_no_weight_update(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A long reply is no standstill; an answer that is due is."""

    async def scenario() -> None:
        watched = watch(0.2, signs=list(range(10_000)))
        async with watched.request("a turn", may_take_longer=True):
            await asyncio.sleep(0.5)
            with pytest.raises(InfrastructureError, match="no answer to update_weights"):
                async with watched.request("update_weights", may_take_longer=False):
                    await asyncio.sleep(600)

    asyncio.run(scenario())
    assert not [
        record
        for record in caplog.records
        if "a turn" in record.getMessage().partition("waiting for")[0]
    ]


def test_a_blocked_event_loop_ages_no_request() -> None:
    """As while a learner computes in its thread: nobody could have read the answer."""

    async def scenario() -> str:
        async with watch(0.5).request("a turn", may_take_longer=True):
            await asyncio.sleep(0.05)
            time.sleep(1.0)  # noqa: ASYNC251 -- the learner
            await asyncio.sleep(0.05)
            return "answered"

    assert asyncio.run(scenario()) == "answered"


def test_no_standstill_is_said_of_a_server_that_was_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a blocked event loop, when more than one tick has passed at once."""

    async def scenario() -> None:
        for milliseconds in range(42, 56, 2):
            watched = watch(5, signs=list(range(1_000)))
            async with watched.request("a turn", may_take_longer=True):
                await asyncio.sleep(milliseconds / 1000)
                time.sleep(0.1)  # noqa: ASYNC251 -- the learner
                await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert not caplog.records


def test_what_goes_on_is_said_and_other_timeouts_stay_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        watched = watch(30)
        async with watched.request("a turn", may_take_longer=False):
            await asyncio.sleep(0.3)
        with pytest.raises(TimeoutError):
            async with watched.request("a turn", may_take_longer=False), asyncio.timeout(0.01):
                await asyncio.sleep(1)

    caplog.set_level(logging.WARNING)
    asyncio.run(scenario())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[1].startswith("the server answers again after")
