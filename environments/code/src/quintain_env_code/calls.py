"""Grading by calls: one sandbox runs the solution, and the host compares what the calls return.

Where tests are data, nothing of them has to run beside the solution: the arguments go in, the
results come out as JSON, and the expected values never leave the host. Results are numbers, text,
booleans, None and lists of these, of exactly the expected types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from quintain_sandbox import ProbedSandbox, ProgramLimits, ProgramResult

from .functions import Call
from .grading import Grade
from .outcomes import ENDS, Outcome

LIMITS = ProgramLimits(
    seconds=10.0, cpu_seconds=2.0, memory=128 << 20, processes=8, output=1 << 18, disk=1 << 20
)
"""Of one solution, all calls together."""
KEPT = 4096
"""Grades that are kept."""

INSIDE = b"""\
import os
source, sink = os.fdopen(os.dup(0), "rb"), os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(null, descriptor)
import json, sys
name, calls = json.loads(source.read())
sys.modules["solution"] = module = type(sys)("solution")  # dataclasses look their module up
names = vars(module)
with open("solution.py", encoding="utf-8") as file:
    exec(compile(file.read(), "solution.py", "exec"), names)
results = []
for arguments in calls:
    try:
        results.append([names[name](*arguments)])
    except Exception as e:
        results.append(f"{type(e).__name__}: {e}"[:200])
data = json.dumps(results).encode()
while data:
    data = data[os.write(sink, data):]
os._exit(0)
"""
"""The program around the solution. It shares a process with the solution, so its report is trusted
no more.
"""


class CallGrader:
    """Grades functions in *sandbox*. An identical solution under the same calls is run once."""

    def __init__(self, sandbox: ProbedSandbox) -> None:
        self._sandbox = sandbox
        self._grades: dict[tuple[str, str], asyncio.Task[Grade]] = {}

    async def grade(self, code: str, name: str, calls: Sequence[Call]) -> Grade:
        """Return 1 if *code* defines the function *name* and each of *calls* returns what is
        expected, else 0.

        Raises:
            InfrastructureError: the sandbox failed.
        """
        key = code, json.dumps([name, [call.arguments for call in calls]])
        running = self._grades.get(key)
        if running is None or _failed(running):
            if len(self._grades) >= KEPT:
                del self._grades[next(iter(self._grades))]
            running = self._grades[key] = asyncio.ensure_future(self._run(*key, name, calls))
            # also takes note of an exception that nobody awaits any more
            running.add_done_callback(_failed)
        return await asyncio.shield(running)

    async def _run(self, code: str, job: str, name: str, calls: Sequence[Call]) -> Grade:
        files = {"solution.py": code.encode(), "quintain_calls.py": INSIDE}
        ended = await self._sandbox.run(
            files, ["python3", "-I", "-S", "quintain_calls.py"], job.encode(), LIMITS
        )
        return _judged(ended, name, calls)


def _failed(task: asyncio.Task[Grade]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _judged(ended: ProgramResult, name: str, calls: Sequence[Call]) -> Grade:
    total = len(calls)
    results: Any = None
    if ended.status not in ENDS:
        # no JSON, or a number or a depth that Python refuses
        with suppress(ValueError, RecursionError):
            results = json.loads(ended.stdout)
    if type(results) is not list or len(results) != total:
        outcome = ENDS.get(ended.status, "crashed")
        reason = f"the solution ended without results: {ended.status}, exit status {ended.exit}"
        return Grade(score=0.0, outcome=outcome, total=total, reason=reason)
    wrong = [i for i, call in enumerate(calls) if not _same(results[i], [call.expected])]
    if not wrong:
        return Grade(score=1.0, outcome="passed", passed=total, total=total)
    result, call = results[wrong[0]], calls[wrong[0]]
    failed: Outcome = "error" if type(result) is str else "failed"
    reason = f"{call.text(name)[:80]} gave {result!r:.80}, expected {[call.expected]!r:.80}"
    return Grade(score=0.0, outcome=failed, passed=total - len(wrong), total=total, reason=reason)


def _same(value: Any, expected: Any) -> bool:
    """Return whether both are equal and of equal types, at every depth."""
    if type(value) is not type(expected):
        return False
    if type(expected) is list:
        return len(value) == len(expected) and all(map(_same, value, expected))
    return bool(value == expected)
