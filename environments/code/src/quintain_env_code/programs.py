"""Grading of programs: cases, tolerance, checkers and interactors.

A program runs anew for each case. Where the sandbox has sessions, all runs of one submission share
a box, which has no expected value in it; a checker has a box of its own. An interactor talks with
the program through the host.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from quintain.errors import EnvironmentFault
from quintain_sandbox import ProbedSandbox, ProgramLimits, ProgramResult

from .outcomes import ENDS, STREAM, Outcome, limits_of, load, patient_limits
from .tasks import LANGUAGES, Case, CodeTask, Language, language_of

Result = tuple[Outcome, str]
JUDGED = ("input.txt", "output.txt", "answer.txt")
"""Arguments of a checker, as of testlib: input, output of the program, expected output."""
REJECTS = (1, 2, 4, 8)
"""Exit statuses of testlib for a wrong answer, its wrong form, what follows it, and its early
end.
"""
FAULT = 3
"""Exit status of testlib where the checker or the expected output is wrong."""
SIGNALLED = (137, 152)
"""Exit statuses after SIGKILL and SIGXCPU, which the limit on CPU time sends."""
SUPERVISOR = 32 << 20
"""Bytes of memory of the process that starts the runs of a session, beside them."""
BUILD_SECONDS = 10.0
"""CPU time of a compiler, and wall-clock time that it gets where no other program runs."""
ANY_DIGITS = ("python3", "-I", "-X", "int_max_str_digits=0")
UNREAD = 1 << 20
"""Bytes of one side of a conversation that wait for the other."""
INTEGER = re.compile(rb"[-+]?\d+")
NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
EXACT = 1 << 53
"""From here on a float does not tell neighbouring integers apart."""


async def graded_cases(
    sandbox: ProbedSandbox, task: CodeTask, files: Mapping[str, str]
) -> list[Result]:
    """Return outcome and reason of each case, in order; without weights up to the first that did
    not pass.

    Raises:
        EnvironmentFault: the checker or the interactor says that it is at fault.
        InfrastructureError: a sandbox failed.
    """
    sources = {name: text.encode() for name, text in files.items()}
    if task.interactor:
        return await _interactive(sandbox, task, sources)
    results: list[Result] = []
    outputs: dict[int, bytes] = {}
    async with aclosing(_runs(sandbox, task, sources)) as runs:
        async for ended in runs:
            case = task.cases[len(results)]
            result = _ended(ended)
            if result[0] == "passed":
                outputs[len(results)] = ended.stdout
                result = result if task.checker else _compared(ended.stdout, case, task)
            results.append(result)
            if result[0] != "passed" and not task.weights:
                break
    if task.checker:
        async with aclosing(_checks(sandbox, task, outputs)) as checks:
            async for number, result in checks:
                results[number] = result
                if result[0] != "passed" and not task.weights:
                    return results[: number + 1]
    return results


def _output_limit(case: Case) -> int:
    """Return the bytes of output that a case may have: several times what is expected."""
    return 4 * max(len(text.encode()) for text in (case.stdout, *case.also)) + (1 << 16)


async def _runs(
    sandbox: ProbedSandbox, task: CodeTask, sources: Mapping[str, bytes]
) -> AsyncGenerator[ProgramResult, None]:
    """Yield the end of the program in each case, in order."""
    limits, room = limits_of(task), max(map(_output_limit, task.cases))
    builds = _language(task) is not None and bool(LANGUAGES[task.language].builds)
    if not sandbox.sessions or (len(task.cases) == 1 and not builds):
        for case in task.cases:
            case_limits = replace(limits, output=_output_limit(case))
            if builds:
                case_limits = _longer(case_limits)
            argv = _alone(task, limits)
            ended = await sandbox.run(sources, argv, case.stdin.encode(), case_limits)
            yield _within(ended, limits, _output_limit(case))
        return
    left = list(task.cases)
    while left:
        seconds, memory = limits.seconds * len(left), limits.memory + SUPERVISOR
        seconds += _longer(limits).seconds
        shared = replace(limits, seconds=seconds, cpu_seconds=seconds, memory=memory, output=room)
        async with sandbox.session(sources, shared) as session:
            argv, built = await _built(session, task, limits)
            while left:
                case = left.pop(0)
                ended = built or await session.run(
                    argv, case.stdin.encode(), seconds=limits.seconds
                )
                yield _within(ended, limits, _output_limit(case))
                if ended.status == "memory":
                    break  # the kernel may have ended more than this run


def _language(task: CodeTask) -> Language | None:
    """Return the language whose own command runs the task; ``None`` where the row has another."""
    language = LANGUAGES.get(task.language)
    return language if language is not None and task.argv == language.argv else None


def _alone(task: CodeTask, limits: ProgramLimits) -> Sequence[str]:
    """Return the command of the only run in a box: it compiles the program first."""
    language = _language(task)
    if language is None:
        return task.argv
    runs = filled(language.runs, task)
    return language.wrapped(tuple(_timed(runs, limits))) if language.builds else runs


def filled(words: Sequence[str], task: CodeTask) -> tuple[str, ...]:
    """Return the command of a known language with what the task's limits say. Python reads and
    prints whole numbers of any length, as at contests.
    """
    heap = str(task.memory_mib * 3 // 8)
    command = tuple(word.replace("{heap}", heap) for word in words)
    return (*ANY_DIGITS, *command[2:]) if command[:2] == ANY_DIGITS[:2] else command


def _longer(limits: ProgramLimits) -> ProgramLimits:
    """Return *limits* of a run that compiles, too."""
    return replace(
        limits,
        seconds=limits.seconds + BUILD_SECONDS * load(),
        cpu_seconds=max(limits.cpu_seconds, BUILD_SECONDS),
    )


async def _built(
    session: Any, task: CodeTask, limits: ProgramLimits
) -> tuple[list[str], ProgramResult | None]:
    """Return the command of one run, and the end of a compiler that failed. The program is compiled
    once.
    """
    language = _language(task)
    if language is None:
        return _timed(task.argv, limits), None
    command = _timed(filled(language.runs, task), limits)
    if not language.builds:
        return command, None
    longer = _longer(limits)
    argv = _timed(("/bin/sh", "-c", f"{language.builds} 1>&2"), longer)
    built = await session.run(argv, seconds=longer.seconds)
    return command, None if built.status == "ok" else built


def _timed(argv: Sequence[str], limits: ProgramLimits) -> list[str]:
    """Return *argv* with a limit on CPU time of its own: that of the session holds for its
    supervisor, too, and that of a box for the compiler.
    """
    return [
        "/bin/sh",
        "-c",
        'ulimit -t "$0" && exec "$@"',
        str(math.ceil(limits.cpu_seconds)),
        *argv,
    ]


def _within(ended: ProgramResult, limits: ProgramLimits, output: int) -> ProgramResult:
    """Return the status that a run alone has: the session knows neither its limit on CPU time nor
    that on output.
    """
    if max(len(ended.stdout), len(ended.stderr)) > output:
        return replace(ended, status="output")
    if ended.exit in SIGNALLED and ended.usage.cpu_seconds >= 0.75 * limits.cpu_seconds:
        return replace(ended, status="timeout")
    return ended


def _ended(ended: ProgramResult) -> Result:
    """Return passed if the program ended well, else its fault; its output is still to be judged."""
    if ended.status in ENDS:
        return ENDS[ended.status], f"the program ended: {ended.status}"
    if ended.status != "ok":
        last = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return "error", f"exit status {ended.exit}: {''.join(last)[:200]}"
    return "passed", ""


def _compared(stdout: bytes, case: Case, task: CodeTask) -> Result:
    """Return passed if the output has exactly the expected tokens, which white space separates, or
    numbers within the tolerance.
    """
    printed = stdout.split()
    for text in (case.stdout, *case.also):
        expected = text.encode().split()
        if len(printed) == len(expected) and all(
            map(lambda a, b: _same_token(a, b, task), printed, expected)
        ):
            return "passed", ""
    return "failed", f"printed {stdout[:80]!r}, expected {case.stdout[:80]!r}"


def _same_token(token: bytes, expected: bytes, task: CodeTask) -> bool:
    """Return whether both are equal text, or finite numbers whose difference is within the absolute
    or the relative error.

    An expected integer equals no other integer, however it is written. Another number counts for it
    within the tolerance if it is less than one half away and the integer is below 2^53.
    """
    if token == expected:
        return True
    if not (task.absolute_error or task.relative_error):
        return False
    if not (NUMBER.fullmatch(token) and NUMBER.fullmatch(expected)):
        return False
    integer = INTEGER.fullmatch(expected)
    if integer and INTEGER.fullmatch(token):
        return _digits(token) == _digits(expected)
    a, b = float(token), float(expected)
    if not (math.isfinite(a) and math.isfinite(b)):
        return False
    if integer and (abs(b) >= EXACT or abs(a - b) >= 0.5):
        return False  # it could be another integer
    return abs(a - b) <= max(task.absolute_error, task.relative_error * abs(b))


def _digits(integer: bytes) -> tuple[bytes, bool]:
    """Return the digits without leading zeros, and whether the integer is negative: `int` refuses
    more than 4,300 digits.
    """
    digits = integer.lstrip(b"+-").lstrip(b"0")
    return digits, bool(digits) and integer.startswith(b"-")


def _files_of(judge: Mapping[str, str], where: str) -> tuple[Language, dict[str, bytes]]:
    """Return the language of a checker or interactor, and its files, the main one by the name that
    the language expects.
    """
    (main, source), *others = judge.items()
    language = language_of(main, where)
    return language, {language.file: source.encode()} | {
        name: text.encode() for name, text in others
    }


async def _checks(
    sandbox: ProbedSandbox, task: CodeTask, outputs: Mapping[int, bytes]
) -> AsyncGenerator[tuple[int, Result], None]:
    """Yield what the checker says of each of *outputs*, by number of the case."""
    language, files = _files_of(task.checker, task.source)
    limits = replace(patient_limits(limits_of(task)), output=UNREAD)
    for number, output in outputs.items():
        case = task.cases[number]
        contents = dict(
            zip(JUDGED, (case.stdin.encode(), output, case.stdout.encode()), strict=True)
        )
        checker_limits = replace(
            limits, disk=max(limits.disk, 4 * sum(map(len, contents.values())))
        )
        ended = await sandbox.run(
            {**files, **contents}, [*filled(language.argv, task), *JUDGED], limits=checker_limits
        )
        yield number, _verdict(ended, task, "checker")


def _verdict(ended: ProgramResult, task: CodeTask, judge: str) -> Result:
    """Return what a checker or interactor says by its exit status.

    Raises:
        EnvironmentFault: it says that it is at fault itself.
    """
    text = ended.stderr or ended.stdout
    message = " ".join(text.decode("utf-8", "replace").split())[:200]
    if ended.status == "ok":
        return "passed", ""
    if ended.exit == FAULT:
        raise EnvironmentFault(
            f"task {task.source or task.id}: the {judge} reports a fault of its own: {message}"
        )
    if ended.exit in REJECTS:
        return "failed", f"the {judge} says: {message}"
    return "error", f"the {judge} ended: {ended.status}, exit status {ended.exit}: {message}"


async def _interactive(
    sandbox: ProbedSandbox, task: CodeTask, sources: Mapping[str, bytes]
) -> list[Result]:
    """Run one conversation for each case, in two boxes; return outcome and reason of each."""
    language, files = _files_of(task.interactor, task.source)
    results: list[Result] = []
    for case in task.cases:
        limits = replace(limits_of(task), output=STREAM)
        command = filled(task.argv, task) if _language(task) else task.argv
        contents = dict(zip(JUDGED, (case.stdin.encode(), b"", case.stdout.encode()), strict=True))
        argv = [*filled(language.argv, task), *JUDGED]
        starts = sandbox.start({**files, **contents}, argv, patient_limits(limits), unread=UNREAD)
        async with (
            starts as judge,
            sandbox.start(sources, command, limits, beside=judge, unread=UNREAD) as program,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(_carried(judge, program))
            group.create_task(_carried(program, judge))
            ends = await program.wait(), await judge.wait()
        ended, verdict = _ended(ends[0]), _verdict(ends[1], task, "interactor")
        # The interactor turns down a program that fell silent, and one that it turned down may end
        # badly.
        first = (
            [ended, verdict] if ended[0] in ENDS.values() or verdict[0] != "failed" else [verdict]
        )
        results.append(next((result for result in first if result[0] != "passed"), ("passed", "")))
        if results[-1][0] != "passed" and not task.weights:
            break
    return results


async def _carried(source: Any, sink: Any) -> None:
    """Pass on the lines of one program to the other, until it ends."""
    while line := await source.read_line(limit=2 * UNREAD):
        await sink.write(line)
        await sink.drain(UNREAD)
    await sink.end_input()
