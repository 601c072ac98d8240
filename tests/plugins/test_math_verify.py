"""Mathematical equivalence in a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.errors import InfrastructureError, RewardFault
from quintain.testing import RewardSuite, rollout
from quintain.types.task import Task
from quintain_math_verify import math_equal
from quintain_math_verify.check import equal
from quintain_workers import WorkerPool

HANGS = "\\boxed{10000000!!}"


def asked(gold: Any, reply: str) -> Any:
    return rollout(Task(prompt="?", answer=gold), reply)


class TestMathEqual(RewardSuite):
    reward = math_equal

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (asked("72", "so it is \\boxed{72}"), 1),
            (asked(72, "The answer is 72."), 1),
            (asked("0.5", "$\\frac{1}{2}$"), 1),
            (asked("\\frac{1}{2}", "\\boxed{0.5}"), 1),
            (asked("$x^2+1$", "\\boxed{1+x^2}"), 1),
            (asked("1200", "\\boxed{1,200}"), 1),
            (asked("72", "12 and 60 make \\boxed{71}"), 0),
            (asked("72", "no idea"), 0),
            (asked("72", ""), 0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        every = " ".join(f"\\boxed{{{n}}}" for n in range(70, 75))
        return [asked("72", every), asked("72", "\\boxed{70, 71, 72}"), asked("72", "\\boxed{\\frac{1}{0}}")]


@settings(deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_whole_numbers_are_equal_when_they_are(a: int, b: int) -> None:
    assert equal(str(a), f"\\boxed{{{b}}}")[0] == (a == b)
    assert equal(str(a), f"\\boxed{{{a}}}")[0] is True


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=40))
def test_no_reply_raises(text: str) -> None:
    assert equal("72", text)[0] in (True, False)


def test_a_reference_that_cannot_be_read_is_our_failure() -> None:
    async def run(gold: Any) -> None:
        async with WorkerPool(size=1) as workers:
            await math_equal.ascore(asked(gold, "\\boxed{1}"), workers=workers)

    for gold in ("", None, "?!"):
        with pytest.raises(RewardFault, match="answer"):
            asyncio.run(run(gold))


class Busy:
    """Workers whose calls time out; *fails* says which."""

    def __init__(self, *fails: bool) -> None:
        self.fails = list(fails)

    async def call(self, function: Any, *args: Any, timeout: float = 5.0) -> Any:
        if self.fails.pop(0):
            raise TimeoutError
        return equal(*args)


def test_a_time_out_is_the_answers_fault_only_if_the_control_passes() -> None:
    task = asked("1", HANGS)
    score = asyncio.run(math_equal.ascore(task, workers=Busy(True, False)))
    assert (score.total, score.reason) == (0, "no outcome within 5 s")
    with pytest.raises(InfrastructureError, match="too busy"):
        asyncio.run(math_equal.ascore(task, workers=Busy(True, True)))


def test_no_control_runs_where_another_answer_got_an_outcome_meanwhile() -> None:
    """The machine is not too busy then, so the answer without an outcome costs no second call."""

    class Counted(WorkerPool):
        calls = 0

        async def call(self, *args: Any, **options: Any) -> Any:
            self.calls += 1
            return await super().call(*args, **options)

    async def run() -> tuple[list[float], int]:
        async with Counted(size=2) as workers:
            warm = (math_equal.ascore(asked("1", "1"), workers=workers) for _ in range(4))
            await asyncio.gather(*warm)
            workers.calls = 0
            texts = (HANGS, "\\boxed{1}")
            hang = math_equal(timeout=4.0)
            scores = await asyncio.gather(*(hang.ascore(asked("1", text), workers=workers) for text in texts))
            return [s.total for s in scores], workers.calls

    assert asyncio.run(run()) == ([0, 1], 2)


def test_a_hanging_answer_is_killed_and_the_next_is_judged() -> None:
    async def run() -> list[tuple[float, str]]:
        async with WorkerPool(size=1) as workers:
            await math_equal.ascore(asked("1", "1"), workers=workers)  # the import is not on the answer's clock
            hang = math_equal(timeout=1.0)
            scores = [await hang.ascore(asked("1", text), workers=workers) for text in (HANGS, "\\boxed{1}")]
            return [(s.total, s.reason) for s in scores]

    assert asyncio.run(run()) == [(0, "no outcome within 1 s"), (1, "")]
