"""Generated functions in a real sandbox: what passes, what does not, and failures that are no
score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_authoring import run_episode
from quintain_env_code import OUTCOMES, Code
from quintain_env_code.calls import CallGrader
from quintain_env_code.functions import Call
from quintain_env_code.grading import Grade
from quintain_env_code.procedural import CodeProcedural, GeneratedTask, table_of
from quintain_sandbox import Bubblewrap

from ...plugins.sandbox.service import started

CALLS = (Call((1, 2), 3), Call((5, -5), 0), Call((40, 2), 42))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from started(slots=2)


def graded(sandbox: Bubblewrap, code: str, calls: tuple[Call, ...] = CALLS) -> Grade:
    return asyncio.run(CallGrader(sandbox).grade(code, "f", calls))


@pytest.mark.parametrize(
    "code",
    [
        "def f(a, b):\n    return a + b",
        "f = lambda a, b: sum((a, b))",
        "print('hello')\nclass A:\n    def __call__(self, a, b):\n        return a + b\nf = A()",
        "import math\ndef f(a, b):\n    return math.floor(a + b)",
        "import sys\ndef f(a, b):\n    print(a, file=sys.stdout)\n    return a + b",
    ],
)
def test_right_functions_pass(sandbox: Bubblewrap, code: str) -> None:
    """However they are written, and whatever they print."""
    g = graded(sandbox, code)
    assert g.score == 1.0, g.reason
    assert g.outcome == "passed", g.reason
    assert g.passed == 3, g.reason
    assert g.total == 3, g.reason


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def f(a, b):\n    return a - b", "failed"),
        ("def f(a, b):\n    return float(a + b)", "failed"),
        ("def f(a, b):\n    return a / 0", "error"),
        ("def g(a, b):\n    return a + b", "error"),
        ("def f(a, b):", "crashed"),
        ("", "error"),
        ("import os\nos._exit(0)", "crashed"),
        ("raise SystemExit(0)", "crashed"),
        ("class E(int):\n    __eq__ = lambda *_: True\ndef f(a, b):\n    return E()", "failed"),
        ("class E:\n    __eq__ = lambda *_: True\ndef f(a, b):\n    return E()", "crashed"),
        ("import os\nos.write(1, b'[[3], [0], [42]]')\ndef f(a, b):\n    return 0", "failed"),
        ("import sys, os\nos.write(3, b'{\"passed\": 3}')\nos._exit(0)", "crashed"),
        (
            "import os\nfor d in range(3, 9):\n    try:\n        os.write(d, b'[')\n    except "
            "OSError:\n        pass",
            "crashed",
        ),
        ("def f(a, b):\n    while True:\n        pass", "timeout"),
        ("def f(a, b):\n    return 'x' * (1 << 30)", "error"),
        ("def f(a, b):\n    r = []\n    r.append(r)\n    return r", "crashed"),
    ],
)
def test_wrong_ones_score_zero(sandbox: Bubblewrap, code: str, outcome: str) -> None:
    """A wrong value or type, an early exit, a forged report, an endless loop; the grader
    continues.
    """
    grade = graded(sandbox, code)
    assert grade.score == 0.0
    # a limit may show as the death of the process
    kinds = {"error", "memory", "crashed", "timeout"}
    assert outcome == grade.outcome or {outcome, grade.outcome} <= kinds, grade.reason
    assert graded(sandbox, "def f(a, b):\n    return a + b").score == 1.0


def test_types_are_exact(sandbox: Bubblewrap) -> None:
    """True is no 1, a tuple comes back as the list that JSON has, and nesting is compared."""
    calls = (Call((1,), 1), Call((0,), 0))
    assert graded(sandbox, "def f(x):\n    return x == 1", calls).score == 0.0
    assert (
        graded(sandbox, "def f(x):\n    return [[x, 'a'], []]", (Call((1,), [[1, "a"], []]),)).score
        == 1.0
    )
    assert (
        graded(
            sandbox, "def f(x):\n    return [[x, 'a'], [None]]", (Call((1,), [[1, "a"], []]),)
        ).score
        == 0.0
    )


def test_hard_coded_solutions_score_zero(sandbox: Bubblewrap) -> None:
    """A table of all hidden calls of an earlier visit passes that visit and no other; the function
    passes all.
    """

    async def scores() -> list[list[float]]:
        grader, rows = CallGrader(sandbox), []
        for task in islice(CodeProcedural(examples=2).tasks("train"), 6):
            table = table_of((*task.examples, *task.calls(0)), task.name)
            grades = [
                await grader.grade(table, task.name, task.calls(visit)) for visit in (0, 1, 2)
            ]
            grades += [
                await grader.grade(task.reply(), task.name, task.calls(visit)) for visit in (0, 1)
            ]
            rows.append([grade.score for grade in grades])
        return rows

    assert asyncio.run(scores()) == [[1.0, 0.0, 0.0, 1.0, 1.0]] * 6


def test_identical_solutions_run_once(sandbox: Bubblewrap) -> None:
    """Samples of a group that are equal share a run; another visit or another text does not."""
    runs = []

    class Counting(Bubblewrap):
        def __init__(self) -> None:
            pass

        async def run(self, *args, **keywords):  # type: ignore[no-untyped-def]
            runs.append(args)
            return await sandbox.run(*args, **keywords)

    async def grade() -> list[Grade]:
        grader = CallGrader(Counting())
        right, other = "def f(a, b):\n    return a + b", "def f(b, a):\n    return a + b"
        tasks = [
            grader.grade(code, "f", calls)
            for code in (right, right, other)
            for calls in (CALLS, CALLS[:2])
        ]
        return [*await asyncio.gather(*tasks), await grader.grade(right, "f", CALLS)]

    assert [g.score for g in asyncio.run(grade())] == [1.0] * 7
    assert len(runs) == 4


def test_a_failing_sandbox_is_no_score() -> None:
    """Its error reaches every sample that waits, and the next attempt runs again."""

    class Failing(Bubblewrap):
        tries = 0

        async def run(self, *args, **keywords):  # type: ignore[no-untyped-def]
            self.tries += 1
            raise InfrastructureError("gone")

    async def grade() -> list[object]:
        sandbox = Failing()
        grader = CallGrader(sandbox)
        found = await asyncio.gather(
            *(grader.grade("x", "f", CALLS) for _ in range(3)), return_exceptions=True
        )
        found += await asyncio.gather(grader.grade("x", "f", CALLS), return_exceptions=True)
        return [*map(type, found), sandbox.tries]

    assert [InfrastructureError] * 4 + [2] == asyncio.run(grade())


def test_an_episode_from_prompt_to_score(sandbox: Bubblewrap) -> None:
    """The reward reads the reply by the environment's rule and asks for the sandbox as a
    service.
    """
    environment = CodeProcedural()
    task: GeneratedTask = next(iter(environment.tasks("dev")))
    for reply, score in (
        (task.reply(), 1.0),
        (f"Here it is:\n```python\n{task.reply()}\n```", 1.0),
        ("```python\n" + task.reply(), 0.0),
        ("", 0.0),
    ):
        played = run_episode(environment, task, reply, services={"sandbox": sandbox})
        assert played.outcome is not None
        assert score == played.outcome.total, played.outcome.reason
        # All outcomes are parts, so that their means over rollouts are shares.
        shares = {name: played.outcome.parts[f"passes_calls.{name}"] for name in OUTCOMES}
        assert sum(shares.values()) == 1
        assert score == shares["passed"]


def test_a_sandbox_that_enforces_too_little_is_refused(tmp_path: Path) -> None:
    """A sandbox that is not started enforces nothing."""
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    task = next(iter(CodeProcedural().tasks("dev")))
    weak = Bubblewrap(slots=1)
    with pytest.raises(
        UsageError, match=r"does not enforce what is needed.*\n  filesystem: absent"
    ):
        Code(data=str(rows), sandbox=weak)
    Code(data=str(rows), sandbox=weak, enforce=())
    played = run_episode(CodeProcedural(), task, task.reply(), services={"sandbox": weak})
    assert played.termination.kind == "reward_error"
    assert "does not enforce what is needed" in played.termination.reason
