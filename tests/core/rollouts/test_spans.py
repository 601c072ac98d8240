"""Spans: nothing is measured until somebody records, and then every block once."""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context

import pytest

from quintain.rollouts.spans import Span, record_spans


class Recorded:
    def __init__(self) -> None:
        self.begun: list[Span] = []
        self.over: list[Span] = []

    def begin(self, span: Span) -> None:
        self.begun.append(span)

    def end(self, span: Span) -> None:
        self.over.append(span)


def test_nobody_records_by_default() -> None:
    """A span without a recorder has no times, and costs a look."""
    with Span("turn", player="") as span:
        span.attributes["tokens"] = 3

    assert span.attributes == {"player": "", "tokens": 3}
    assert not hasattr(span, "began")


def test_a_span_knows_its_parent_times_and_error() -> None:
    """Inner blocks name the outer one, in the order in which they end."""

    recorded, context = Recorded(), Context()

    def episode() -> None:
        with Span("episode"):
            with Span("turn"):
                pass
            raise OSError("no")

    context.run(record_spans, recorded)
    with pytest.raises(OSError, match="no"):
        context.run(episode)

    assert [span.name for span in recorded.begun] == ["episode", "turn"]
    inner, outer = recorded.over
    assert inner.name == "turn"
    assert inner.parent == outer
    assert inner.error == ""
    assert outer.parent is None
    assert outer.error == "OSError"
    assert outer.began <= inner.began <= inner.ended <= outer.ended


def test_tasks_have_spans_of_their_own() -> None:
    """Of two tasks at once each knows what is around it, and one that outlives the span in which it
    began has nothing around it.
    """
    recorded = Recorded()

    async def episode(number: int) -> None:
        with Span("episode", number=number):
            await asyncio.sleep(0)
            with Span("turn", number=number):
                await asyncio.sleep(0)

    async def late(over: asyncio.Event) -> None:
        await over.wait()
        with Span("late"):
            pass

    async def run() -> None:
        record_spans(recorded)
        over = asyncio.Event()
        with Span("rollouts"):
            task = asyncio.create_task(late(over))
            await asyncio.gather(episode(1), episode(2))
        over.set()
        await task

    asyncio.run(run())

    by_name = {(s.name, s.attributes.get("number")): s for s in recorded.over}
    for number in (1, 2):
        assert by_name["turn", number].parent is by_name["episode", number]
        assert by_name["episode", number].parent is by_name["rollouts", None]
    assert by_name["late", None].parent is None


def test_recording_stays_in_its_context() -> None:
    """Another run of the process, before or after, is not recorded with it."""
    recorded = Recorded()
    copy_context().run(record_spans, recorded)

    with Span("step"):
        pass

    assert recorded.begun == []


def test_a_coroutine_that_nobody_ends_closes_its_span() -> None:
    """Closing it from somewhere else, as the garbage collector does, raises nothing."""
    recorded = Recorded()

    async def stuck() -> None:
        with Span("turn"):
            await asyncio.sleep(0)

    context = Context()
    context.run(record_spans, recorded)
    coroutine = stuck()
    context.run(coroutine.send, None)
    coroutine.close()

    assert [span.error for span in recorded.over] == ["GeneratorExit"]
