"""Programs: tolerance, several accepted outputs, checkers, interactors, and many cases in one
box.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quintain.errors import EnvironmentFault, UsageError
from quintain_env_code import Case, CodeTask, Grade, Grader
from quintain_env_code.programs import _compared
from quintain_sandbox import ProbedSandbox

from ...plugins.sandbox.service import started


@pytest.fixture(
    scope="module",
    params=[
        "bubblewrap",
        pytest.param("landlock", marks=pytest.mark.slow),
        pytest.param("docker", marks=pytest.mark.ci),
    ],
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[ProbedSandbox]:
    """With sessions (bubblewrap, docker) and without."""
    yield from started(request.param, slots=2)


def graded(sandbox: ProbedSandbox, task: CodeTask, *codes: str) -> list[Grade]:
    async def grades() -> list[Grade]:
        grader = Grader(sandbox)
        return [await grader.once(task, {task.files[0]: code}) for code in codes]

    try:
        return asyncio.run(grades())
    except EnvironmentFault as e:
        if "the sandbox has no g" in str(e):  # an image without a compiler
            pytest.skip(str(e))
        raise


@pytest.mark.parametrize(
    ("printed", "expected", "absolute", "relative", "passes"),
    [
        ("0.3333333333", "0.333333333333333", 1e-6, 0.0, True),
        ("3", "3.0", 1e-9, 0.0, True),
        ("3", "3.0", 0.0, 0.0, False),
        ("1000001", "1000000.0", 1e-6, 1e-5, True),
        ("1000001", "1000000.0", 1e-6, 1e-7, False),
        ("1000001", "1000000", 1e-6, 1e-5, False),
        ("999999938", "999999937", 1e-6, 1e-6, False),
        ("9007199254740993", "9007199254740992", 1e-6, 0.0, False),
        ("1_000", "1000", 1e-6, 0.0, False),
        ("1_0.5", "10.5", 1e-6, 0.0, False),
        ("+7", "007", 1e-6, 0.0, True),
        ("1e6", "1000000", 1e-6, 0.0, True),
        ("2.9999999", "3", 1e-6, 0.0, True),
        ("1000000.4", "1000000", 0.0, 1e-6, True),
        ("1000000.5", "1000000", 0.0, 1e-6, False),
        ("9007199254740993.0", "9007199254740993", 1.0, 1.0, False),
        ("1" * 5000, "2" * 5000, 1e-6, 0.0, False),
        ("0.1 yes\n", "0.1000001\nyes", 1e-6, 0.0, True),
        ("0.1 no", "0.1 yes", 1.0, 1.0, False),
        ("0.1", "0.1 0.2", 1.0, 1.0, False),
        ("inf", "1e308", 1.0, 1e9, False),
        ("nan", "1", 1.0, 1.0, False),
        ("inf", "inf", 1e-6, 0.0, True),
        ("1e400", "-1e400", 1e-6, 1e-6, False),
    ],
)
def test_numbers_are_accepted_within_the_tolerance(
    printed: str, expected: str, absolute: float, relative: float, passes: bool
) -> None:
    """Either error suffices; other tokens, their number and infinities are exact."""
    case = Case(stdin="", stdout=expected)
    task = CodeTask(
        prompt="", kind="stdin", cases=(case,), absolute_error=absolute, relative_error=relative
    )
    assert passes == (_compared(printed.encode(), case, task)[0] == "passed")


@settings(deadline=None, derandomize=True)
@given(
    st.integers(-(10**30), 10**30),
    st.integers(-(10**30), 10**30) | st.integers(-3, 3),
    st.sampled_from(["{}", "{:+}", "{}.0", "{}.", "{}e0", "{:_}"]),
    st.sampled_from([0.0, 1e-9, 1e-6, 0.5, 1e9]),
    st.sampled_from([0.0, 1e-9, 1e-6, 0.5, 1e9]),
)
def test_integers_that_differ_are_never_equal(
    expected: int, other: int, notation: str, absolute: float, relative: float
) -> None:
    """Whatever the tolerance, the size and the notation of the printed integer; *other* is near or
    anywhere.
    """
    printed = other if abs(other) > 3 else expected + other
    assume(printed != expected)
    task = CodeTask(
        prompt="", kind="stdin", cases=(Case(stdin="", stdout=f"{expected}"),),
        absolute_error=absolute, relative_error=relative,
    )  # fmt: skip
    assert _compared(notation.format(printed).encode(), task.cases[0], task)[0] != "passed"


@pytest.mark.parametrize("notation, absolute", [("{}", 0.0), ("{}", 1e-9), ("{:+}", 1e-9)])
@given(st.integers(-(10**30), 10**30))
def test_an_integer_equals_itself(notation: str, absolute: float, expected: int) -> None:
    """With a sign of plus only where a tolerance makes it a number."""
    case = Case(stdin="", stdout=f"{expected}")
    task = CodeTask(prompt="", kind="stdin", cases=(case,), absolute_error=absolute)
    assert _compared(notation.format(expected).encode(), case, task)[0] == "passed"


def test_a_case_may_have_several_outputs(sandbox: ProbedSandbox) -> None:
    task = CodeTask(prompt="", kind="stdin", cases=(Case(stdin="", stdout="2 3", also=("3 2",)),))
    assert [
        g.score for g in graded(sandbox, task, "print(2, 3)", "print(3)\nprint(2)", "print(2, 2)")
    ] == [1, 1, 0]


MANY = CodeTask(
    prompt="",
    kind="stdin",
    cpu_seconds=10.0,
    cases=tuple(Case(stdin=f"{n}\n", stdout=str(7919 * n)) for n in (1, 2, 3)),
)
READS_ALL = """
import glob
found = ""
for name in (*glob.glob("/tmp/**", recursive=True), *glob.glob("**", recursive=True), *glob.glob("/proc/[0-9]*/*")):
    if not name.startswith("/proc") or name.endswith(("/cmdline", "/environ", "/stat")):
        try:
            found += open(name, "rb").read(10000).decode("latin-1")
        except OSError:
            pass
n = int(input())
print(7919 * n if str(7919 * n) in found else 0)
"""
LEAVES = """
import os, subprocess, sys
n = int(input())
subprocess.Popen(["/bin/sh", "-c", "sleep 60"], start_new_session=True)
print(7919 * n)
"""


def test_many_cases_share_a_box_and_nothing_that_they_should_not(sandbox: ProbedSandbox) -> None:
    """Each is a process of its own; no expected output is in the box, and what a run leaves behind
    does not matter.
    """
    right, reads, leaves, second = graded(
        sandbox,
        MANY,
        "print(7919 * int(input()))",
        READS_ALL,
        LEAVES,
        "print(7919 * int(input()) % 20000)",
    )
    assert [g.score for g in (right, reads, leaves, second)] == [1, 0, 1, 0], (reads, leaves)
    assert second.passed == 2
    assert second.outcome == "failed"


def test_limits_hold_for_each_case(sandbox: ProbedSandbox) -> None:
    """A case at its limit costs its own weight; those after it are still run."""
    code = (
        "n = int(input())\nwhile n == 1: pass\nx = bytearray(n * (1 << 28) if n == 2 else "
        "0)\nprint(7919 * n)\n"
    )
    task = replace(MANY, weights=(0.5, 0.25, 0.25), cpu_seconds=1.0, memory_mib=128)
    (got,) = graded(sandbox, task, code)
    assert got.score == 0.25, got
    assert got.outcome == "timeout", got
    assert got.passed == 1, got
    assert got.total == 3, got
    (flood,) = graded(sandbox, MANY, "print('x' * 10**6)")
    assert flood.score == 0
    assert flood.outcome == "output"


def test_a_compiled_program_passes_and_a_broken_one_says_why(sandbox: ProbedSandbox) -> None:
    from quintain_env_code.tasks import LANGUAGES

    task = replace(MANY, language="c", argv=LANGUAGES["c"].argv, files=("main.c",), memory_mib=1024)
    code = '#include <stdio.h>\nint main(){int n;scanf("%d",&n);printf("%d\\n",7919*n);return 0;}\n'
    right, broken = graded(sandbox, task, code, "int main({")
    assert right.score == 1, right
    assert right.passed == 3, right
    assert broken.score == 0
    assert broken.outcome == "error"


DIVISORS = """
import sys
given, output, answer = (open(name).read().split() for name in sys.argv[1:4])
if len(output) != 2:
    sys.exit("two numbers expected")
a, b = map(int, output)
if a * b == 666:
    sys.exit(3)
if a * b != int(given[0]) or (a == 1) != (answer[0] == "1"):
    print("wrong factors", file=sys.stderr)
    sys.exit(1)
"""
FACTORS = CodeTask(
    prompt="",
    kind="stdin",
    cases=(Case(stdin="12\n", stdout="3 4"), Case(stdin="7\n", stdout="1 7")),
    checker={"checker.py": DIVISORS},
    source="factors",
)
FACTOR = "n = int(input())\na = next((d for d in range(2, n) if n % d == 0), 1)\nprint(a, n // a)\n"


def test_a_checker_judges_the_output_in_a_box_of_its_own(sandbox: ProbedSandbox) -> None:
    """Exit status 0 of the checker accepts; what the solution leaves in its own box is not
    there.
    """
    plants = (
        "open('solution.py', 'w').write('raise SystemExit(0)')\nopen('checker.py', "
        "'w').write('')\nprint(1, 1)\n"
    )
    floods = "print('9' * 5000, '9' * 5000)\n"
    grades = graded(
        sandbox,
        FACTORS,
        FACTOR,
        "print(1, input())",
        "print('x')",
        plants,
        floods,
        "raise SystemExit(1)",
    )
    assert [g.score for g in grades] == [1, 0, 0, 0, 0, 0], grades
    assert grades[1].reason == "the checker says: wrong factors"
    assert grades[5].outcome == "error"
    assert grades[5].passed == 0
    with pytest.raises(
        EnvironmentFault, match="task factors: the checker reports a fault of its own"
    ):
        graded(sandbox, FACTORS, "print(2, 333)")


TESTLIB = """
#include "small.h"
int main(int argc, char** argv) {
    long given, a, b;
    FILE* input = fopen(argv[1], "r"); FILE* output = fopen(argv[2], "r");
    if (fscanf(input, "%ld", &given) != 1) return 3;
    if (fscanf(output, "%ld %ld", &a, &b) != 2) return 2;
    return a * b == given ? OK : 1;
}
"""


def test_a_checker_may_be_compiled_and_have_further_files(sandbox: ProbedSandbox) -> None:
    files = {"check.cpp": TESTLIB, "small.h": "#include <cstdio>\nenum { OK = 0 };\n"}
    task = replace(FACTORS, checker=files, cases=FACTORS.cases[:1], memory_mib=1024)
    assert [g.score for g in graded(sandbox, task, FACTOR, "print(5, 5)")] == [1, 0]


GUESSES = """
import sys
secret = int(open(sys.argv[1]).read())
for turn in range(12):
    line = sys.stdin.readline()
    if not line.strip().isdigit():
        sys.exit("no guess")
    guess = int(line)
    print("higher" if guess < secret else "lower" if guess > secret else "right", flush=True)
    if guess == secret:
        sys.exit(0)
sys.exit(1)
"""
SEARCHES = """
low, high = 1, 1000
while True:
    guess = (low + high) // 2
    print(guess, flush=True)
    said = input()
    if said == "right":
        break
    low, high = (guess + 1, high) if said == "higher" else (low, guess - 1)
"""
GUESS = CodeTask(
    prompt="",
    kind="stdin",
    cases=(Case(stdin="3\n", stdout=""), Case(stdin="937\n", stdout="")),
    interactor={"interactor.py": GUESSES},
    cpu_seconds=1.0,
    source="guess",
)


def test_an_interactor_talks_with_the_program_and_judges_it(
    sandbox: ProbedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are contained; silence, floods, early ends and forged words gain nothing."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    silent = "import time\ntime.sleep(60)\n"
    counts = (
        "for n in range(1, 1001):\n    print(n, flush=True)\n    if input() == 'right': break\n"
    )
    floods = "while True: print('1' * 1000)\n"
    peeks = "import glob\nprint(open('input.txt').read())\n"
    forges = "print('right')\nprint('0')\nimport os\nos._exit(0)\n"
    crashes = SEARCHES + "raise SystemExit(1)\n"
    codes = (SEARCHES, silent, counts, floods, peeks, forges, crashes)
    grades = graded(sandbox, GUESS, *codes)
    assert [g.score for g in grades] == [1, 0, 0, 0, 0, 0, 0], grades
    assert grades[0].passed == 2
    assert grades[1].outcome == "timeout"
    assert grades[2].outcome == "failed"
    assert grades[2].passed == 1


def test_judges_of_other_kinds_and_unknown_languages_are_refused() -> None:
    with pytest.raises(UsageError, match="only programs .* have a checker"):
        CodeTask(prompt="", tests=("assert 1",), checker={"checker.py": ""})
    with pytest.raises(
        UsageError, match="'check.rb' has no known suffix; expected one of py, c, cpp"
    ):
        replace(FACTORS, checker={"check.rb": ""})
