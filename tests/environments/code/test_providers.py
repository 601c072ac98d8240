"""Every kind of task in every provider of sandboxes: right solutions pass, wrong and hostile ones
do not.

The providers differ in folders, file systems and processes, so a grader that works in one may fail
in another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quintain_env_code import Case, CodeTask, Grader, task_of
from quintain_env_code.calls import CallGrader
from quintain_env_code.functions import Call
from quintain_sandbox import ProbedSandbox

from ...plugins.sandbox.service import on_podman, started

RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    return x\n"
HEAD = 'def f(x: int) -> int:\n    """The next number."""\n'
PLANTED = Path("/dev/shm/conftest.py")
HOOK = """
def pytest_pyfunc_call(pyfuncitem):
    return True if "planted" in pyfuncitem.nodeid else None
"""
PLANTS = f"""
for folder in ("/dev/shm", "/tmp", "..", "../..", "."):
    try:
        open(folder + "/conftest.py", "w").write({HOOK!r})
    except OSError:
        pass
{WRONG}"""
"""Leaves a hook for later tests of this name; the others of the machine are left alone."""

CASES = (Case(stdin="1\n", stdout="2\n"), Case(stdin="5\n", stdout="6"))
CHECKS = """
import sys
given, printed = (open(name).read().split() for name in sys.argv[1:3])
sys.exit(0 if printed == [str(int(given[0]) + 1)] else 1)
"""
ASKS = """
import sys
given = int(open(sys.argv[1]).read())
print(given, flush=True)
sys.exit(0 if sys.stdin.readline().strip() == str(given + 1) else 1)
"""
TASKS = {
    "function": CodeTask(prompt="", tests=("assert f(1) == 2", "assert f(5) == 6"),
    solution={"solution.py": RIGHT}),
    "humaneval": task_of(
        {
            "task_id": "T/0", "prompt": HEAD, "entry_point": "f",
            "canonical_solution": "    return x + 1\n",
            "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        },
        "",
    ),
    "evalplus": task_of(
        {
            "task_id": "T/1", "prompt": HEAD, "entry_point": "f",
            "canonical_solution": "    return x + 1\n",
            "base_input": [[1], [7]],
        },
        "",
    ),
    "suite": CodeTask(
        prompt="",
        kind="suite",
        suite={"test_planted.py": "from solution import f\n\ndef test_planted():\n    assert f(1) == 2\n"},
        solution={"solution.py": RIGHT},
    ),
    "stdin": CodeTask(prompt="", kind="stdin", cases=CASES),
    "several outputs": CodeTask(prompt="", kind="stdin", cases=tuple(replace(case, stdout="none",
    also=(case.stdout,)) for case in CASES)),
    "tolerance": CodeTask(prompt="", kind="stdin", cases=CASES, absolute_error=1e-6),
    "checker": CodeTask(prompt="", kind="stdin", cases=CASES, checker={"checker.py": CHECKS}),
    "interactor": CodeTask(prompt="", kind="stdin", cases=CASES, cpu_seconds=2.0,
    interactor={"interactor.py": ASKS}),
}  # fmt: skip
CALLS = (Call((1,), 2), Call((5,), 6))
PROGRAM = "{}\nprint(f(int(input())))\n"
HONEST = {
    "plain": RIGHT,
    "dataclass": "from __future__ import annotations\nfrom dataclasses import "
    "dataclass\n\n@dataclass\nclass Next:\n"
    "    x: int\n\ndef f(x):\n    return Next(x + 1).x\n",
}
HOSTILE = {
    "plants a conftest": PLANTS,
    "wrong, after it": WRONG,
    "exits": "import os\nos._exit(0)\n",
    "always equal": """
class Equal:
    __eq__ = lambda self, other: True
    __str__ = lambda self: "2"
def f(x):
    return Equal()
""",
    "speaks": f"""
import os
for fd in range(1, 9):
    try:
        os.write(fd, b'D{{"results": [["passed", ""]]}}\\n')
    except OSError:
        pass
{WRONG}""",
}


SLOW = pytest.mark.slow
PROVIDERS = [
    ("bubblewrap",),
    ("landlock",),
    ("rlimits", SLOW),
    ("docker", pytest.mark.ci),
    ("podman", pytest.mark.ci),
]


@pytest.fixture(scope="module")
def provider(request: pytest.FixtureRequest) -> Iterator[ProbedSandbox]:
    if request.param == "podman":
        with on_podman() as url:
            yield from started("docker", slots=2, url=url)
    else:
        yield from started(request.param, slots=2)
    with suppress(OSError):
        if PLANTED.read_text() == HOOK:
            PLANTED.unlink()


async def score(sandbox: ProbedSandbox, kind: str, code: str) -> tuple[float, str]:
    if kind == "calls":
        grade = await CallGrader(sandbox).grade(code, "f", CALLS)
    else:
        task: Any = TASKS[kind]
        program = PROGRAM.format(code) if task.kind == "stdin" else code
        grade = await Grader(sandbox).grade(task, {"solution.py": program})
    return grade.score, grade.reason


KINDS = (*TASKS, "calls")
FAST = {
    "bubblewrap": {"function", "suite", "stdin", "calls"},
    "landlock": {"function", "interactor"},
}
"""Each way in which a program is graded once, and in each provider one that plants files and one
that talks; `make test-slow` has all pairs.
"""


@pytest.mark.keeps("bubblewrap-calls", "landlock-function")
@pytest.mark.parametrize(
    "provider, kind",
    [
        pytest.param(name, kind, marks=[*marks, *([] if kind in FAST.get(name, KINDS) else [SLOW])])
        for name, *marks in PROVIDERS
        for kind in KINDS
    ],
    indirect=["provider"],
)
def test_right_solutions_pass_and_hostile_ones_do_not(provider: ProbedSandbox, kind: str) -> None:
    """In this order, so that what a hostile one leaves behind would show in the next."""

    async def scores() -> dict[str, tuple[float, str]]:
        return {name: await score(provider, kind, rows[name]) for name in expected}

    rows = {**HOSTILE, **HONEST}
    expected = {**dict.fromkeys(HOSTILE, 0.0), **dict.fromkeys(HONEST, 1.0)}
    if kind == "suite":  # pytest takes a second to start
        expected = {
            name: expected[name] for name in ("plants a conftest", "wrong, after it", "plain")
        }
    got = asyncio.run(scores())
    assert expected == {name: value for name, (value, _) in got.items()}, got
