"""Grading in two sandboxes: the solution in one, the tests and expected values in the other.

The host relays lines between them and reads none of the solution's. A pass is a message of the
tests' sandbox that repeats a nonce and has one outcome for each test.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from quintain.errors import EnvironmentFault, InfrastructureError
from quintain_sandbox import LineTooLong, ProbedSandbox, ProgramResult

from .archive import pytest_archive
from .names import solution_names, suite_tests
from .outcomes import ENDS, OUTCOMES, Outcome, limits_of, patient_limits
from .programs import graded_cases
from .tasks import LANGUAGES, MODULE, Case, CodeTask, language_of

LINE = 17 << 20
"""Bytes of one message between the sandboxes: what `inside.values` writes, and its head."""
Operations = dict[str, dict[str, int]]
"""How often each test of a suite compares or combines objects of the solution, by kind of
operation.
"""
FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(;]*)[^\n]*", re.M)
"""An import that only docstrings, comments and others of its kind may precede."""
KNOWN = {
    "function": CodeTask(
        prompt="", tests=("assert f() == 1",), solution={MODULE: "def f():\n    return 1\n"}
    ),
    "suite": CodeTask(
        prompt="",
        kind="suite",
        suite={"test_f.py": "from solution import f\n\ndef test_f():\n    assert f() == 1\n"},
        solution={MODULE: "def f():\n    return 1\n"},
    ),
    "stdin": CodeTask(
        prompt="", kind="stdin", cases=(Case(stdin="1", stdout="1"),), argv=("cat",),
        language="cat", solution={MODULE: ""},
    ),
    **{
        name: CodeTask(
            prompt="", kind="stdin", cases=(Case(stdin="1", stdout="1"),), argv=language.argv,
            language=name, files=(language.file,), solution={language.file: language.known},
        )
        for name, language in LANGUAGES.items()
    },
}  # fmt: skip
"""Tasks whose references pass in every sandbox that can grade their kind or run their language."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What the tests say of a solution.

    Attributes:
        score: 1 if all tests passed; else the weights of those that did, 0 without weights.
        outcome: ``passed``, or what happened to the first test that did not pass. ``failed`` is a
            wrong result, ``error`` an exception, ``crashed`` an early exit, ``unsupported`` a
            result that is no plain data; the others name the limit, or say that the reply has no
            code.
        passed, total: tests.
        reason: one line for people; it may show tests, so it never goes to the policy.
    """

    score: float
    outcome: Outcome
    passed: int = 0
    total: int = 0
    reason: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """Each outcome with 1 or 0, so that means over rollouts are shares, and the share of tests
        passed.
        """
        of_outcomes: dict[str, float] = {name: float(name == self.outcome) for name in OUTCOMES}
        return {**of_outcomes, "tests_passed": self.passed / max(1, self.total)}


class Grader:
    """Grades solutions in *sandbox*."""

    def __init__(self, sandbox: ProbedSandbox) -> None:
        self._sandbox = sandbox
        self._commands: dict[str, bool] = {}
        self._sound: set[str] = set()
        self._operations: dict[str, Operations] = {}
        self._able: set[tuple[str, int]] = set()

    async def grade(self, task: CodeTask, files: Mapping[str, str]) -> Grade:
        """Grade *files*, the solution by file name.

        Raises:
            EnvironmentFault: the task cannot be graded: the sandbox lacks its language, or its
                reference fails.
            InfrastructureError: a sandbox failed, or cannot grade tasks of this kind.
        """
        grade = await self.once(task, files)
        if grade.outcome != "passed":
            await self.check_sandbox(task)
            if task.solution and task.id not in self._sound:
                await self._check_reference(task)
        return grade

    async def check_sandbox(self, task: CodeTask) -> None:
        """Grade a task that is known to pass, once for each kind, language and memory, so that no
        row and no solution gets the blame.

        Raises:
            InfrastructureError: the sandbox does not grade it as passed.
        """
        language = LANGUAGES.get(task.language)
        own = task.kind == "stdin" and language is not None and task.argv == language.argv
        name = task.language if own else task.kind
        memory = task.memory_mib if own else KNOWN[name].memory_mib
        if (name, memory) in self._able:
            return
        known = replace(KNOWN[name], memory_mib=memory)
        grade = await self.once(known, known.solution)
        if grade.outcome != "passed":
            what = f"programs in {name} with {memory} MiB" if own else f"tasks of the kind {name!r}"
            raise InfrastructureError(
                f"the sandbox {self._sandbox.name} cannot grade {what}: one that is known to pass "
                f"gets {grade.outcome}: {grade.reason}. Neither row nor solution is at fault. Fix: "
                "another provider in [services.sandbox], such as bubblewrap or docker"
                + (", or a larger memory_mib in the row" if own else "")
            )
        self._able.add((name, memory))

    async def _check_reference(self, task: CodeTask) -> None:
        reference = await self.once(task, task.solution)
        if reference.outcome != "passed":
            await self.check_sandbox(task)
            raise EnvironmentFault(
                f"task {task.source or task.id}: its own reference does not pass: "
                f"{reference.outcome}: {reference.reason}; correct the row or leave it out"
            )
        self._sound.add(task.id)

    async def once(self, task: CodeTask, files: Mapping[str, str]) -> Grade:
        """Grade *files* as `grade` does, without the check of the reference."""
        first = task.files[0]
        complete = dict(files)
        if task.prefix and first in files:
            complete[first] = _prefixed(task.prefix, files[first])
        if task.kind == "stdin":
            return await self._program(task, complete)
        if task.kind == "function":
            return (await self._related(task, complete, {}))[0]
        if dict(files) == dict(task.solution):
            grade, operations = await self._related(task, complete, None)
            if grade.outcome == "passed":
                self._operations[task.id] = operations
            return grade
        if task.solution and task.id not in self._operations:
            await self._check_reference(task)
        return (await self._related(task, complete, self._operations.get(task.id, {})))[0]

    async def _program(self, task: CodeTask, files: Mapping[str, str]) -> Grade:
        await self._require(
            LANGUAGES[task.language].command if task.language in LANGUAGES else task.argv[0]
        )
        for judge in filter(None, (task.checker, task.interactor)):
            await self._require(language_of(next(iter(judge)), task.source).command)
        return _graded(task, await graded_cases(self._sandbox, task, files), len(task.cases))

    async def _require(self, command: str) -> None:
        if command not in self._commands:
            look = await self._sandbox.run({}, ["/bin/sh", "-c", 'command -v "$1"', "sh", command])
            self._commands[command] = look.status == "ok"
        if not self._commands[command]:
            raise EnvironmentFault(
                f"the sandbox has no {command}: install it where the sandbox takes its programs "
                f"from"
            )

    async def _related(
        self, task: CodeTask, files: Mapping[str, str], allowed: Operations | None
    ) -> tuple[Grade, Operations]:
        """Run the tests in one sandbox and the solution in another; return the grade, and the
        operations that the tests used.

        Args:
            allowed: operations on objects of the solution, by test; ``None`` allows all, for the
                reference.
        """
        nonce = secrets.token_hex(16)
        job, tests = _job(task, nonce)
        job["allowed"] = allowed
        solution = {name: text.encode() for name, text in files.items()} | _inside("solution")
        command, limits = ["python3", "-I", "quintain_solution.py"], limits_of(task)
        patient = patient_limits(limits)
        async with AsyncExitStack() as stack:
            # The tests come first, because their program takes longer to get ready.
            started = self._sandbox.start(tests, ["python3", "-I", "quintain_tests.py"], patient)
            judge = await stack.enter_async_context(started)
            await judge.write(_line(job))
            box = await stack.enter_async_context(
                self._sandbox.start(solution, command, limits, beside=judge)
            )
            await box.write(_line({"in_place": task.in_place}))
            verdict = await _relay(judge, box, nonce)
        if isinstance(verdict, ProgramResult):
            outcome: Outcome = ENDS.get(verdict.status, "error")
            return Grade(
                score=0.0, outcome=outcome, reason=f"the tests did not end: {verdict.status}"
            ), {}
        if "fault" in verdict:
            return Grade(
                score=0.0, outcome="error", reason=f"the tests do not run: {verdict['fault']}"
            ), {}
        if task.kind == "function":
            return _graded(
                task, [(o, reason) for o, reason in verdict["results"]], len(task.tests)
            ), {}
        return _graded(task, *_of_suite(task, verdict["results"])), verdict["used"]


def _prefixed(prefix: str, code: str) -> str:
    """Return *code* behind *prefix*, but for imports of ``__future__``, which have to come first."""
    end = max((found.end() for found in FUTURE.finditer(code)), default=0)
    return f"{code[:end]}\n{prefix}\n{code[end:]}" if end else f"{prefix}\n{code}"


async def _relay(judge: Any, box: Any, nonce: str) -> dict[str, Any] | ProgramResult:
    """Pass requests and replies on; return the tests' verdict, or their end without one."""
    end_notice = b""
    while True:
        line = await judge.read_line(limit=LINE)
        if not line.endswith(b"\n"):
            ended: ProgramResult = await judge.wait()
            return ended
        if line[:1] == b"D":
            verdict: dict[str, Any] = json.loads(line[1:])
            if verdict.get("nonce") == nonce:
                return verdict
        elif line[:1] == b"C":
            reply = b""
            if not end_notice:
                await box.write(line[1:])
                reply, end_notice = await _reply(box)
            await judge.write(end_notice or b"R" + reply)


async def _reply(box: Any) -> tuple[bytes, bytes]:
    """Return the solution's next line, or the news of its end."""
    try:
        line = await box.read_line(limit=LINE)
    except LineTooLong:
        return b"", b"X" + _line(["output", "a reply of the solution is too long"])
    if line.endswith(b"\n"):
        return line, b""
    ended = await box.wait()
    outcome = ENDS.get(ended.status, "crashed")
    return b"", b"X" + _line(
        [outcome, f"the solution ended: {ended.status}, exit status {ended.exit}"]
    )


def _job(task: CodeTask, nonce: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return what the tests' sandbox gets: the job, and its files."""
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in task.files
    ]
    job: dict[str, Any] = {"kind": task.kind, "nonce": nonce, "in_place": task.in_place}
    if task.kind == "function":
        names, imports = solution_names(
            task.setup, task.tests, task.solution.get(task.files[0], "")
        )
        setup = f"{imports}\n{task.setup}"
        job |= {"module": modules[0], "names": names, "setup": setup, "tests": task.tests}
        return job, _inside("tests")
    archive = pytest_archive()
    suite = {f"suite/{name}": text.encode() for name, text in task.suite.items()}
    return job | {"modules": modules, "pytest": "pytest.zip"}, suite | {
        "pytest.zip": archive
    } | _inside("tests")


@cache
def _inside(program: str) -> dict[str, bytes]:
    """Return the files of a program of `quintain_env_code.inside`, by their names in the sandbox."""
    folder = resources.files(__package__) / "inside"
    return {
        f"quintain_{name}.py": (folder / f"{name}.py").read_bytes() for name in ("values", program)
    }


def _line(data: Any) -> bytes:
    return json.dumps(data).encode("ascii") + b"\n"


def _of_suite(
    task: CodeTask, results: Mapping[str, Sequence[Any]]
) -> tuple[list[tuple[Outcome, str]], int]:
    """Return the outcomes of the tests that stand in the files, in order, then of the others, and
    how many tests there are; each of the former must have run.
    """
    groups: dict[str, list[Sequence[Any]]] = {name: [] for name in suite_tests(task.suite)}
    total = len(groups)
    for node, result in results.items():
        groups.setdefault(node.partition("[")[0].removeprefix("suite/"), []).append(result)
    outcomes: list[tuple[Outcome, str]] = []
    for name, group in groups.items():
        bad = next(((o, reason) for o, reason in group if o != "passed"), None)
        missing: tuple[Outcome, str] = ("error", f"{name} did not run")
        outcomes.append(bad or (("passed", "") if group else missing))
    return outcomes, max(total, len(outcomes))


def _graded(task: CodeTask, results: Sequence[tuple[Outcome, str]], total: int) -> Grade:
    passed = [outcome == "passed" for outcome, _ in results]
    first = next(((o, reason) for o, reason in results if o != "passed"), None)
    if total < 1 or (first is None and len(results) != total):
        first = ("error", f"{len(results)} results for {total} tests")
    if first is None:
        return Grade(score=1.0, outcome="passed", passed=total, total=total)
    if first[0] not in OUTCOMES:
        raise EnvironmentFault(f"the tests' sandbox reports an unknown outcome {first[0]!r}")
    weights = [weight for weight, ok in zip(task.weights, passed, strict=False) if ok]
    score = min(1.0, sum(weights)) if task.weights else 0.0
    return Grade(score=score, outcome=first[0], passed=sum(passed), total=total, reason=first[1])
