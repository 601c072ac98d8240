"""The environment `code`: programming tasks of data sets, graded in two sandboxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from quintain import (
    Demonstration,
    Environment,
    Limits,
    Message,
    Rollout,
    Score,
    control,
    need,
    reward,
)
from quintain.errors import UsageError
from quintain_sandbox import Axes, ProbedSandbox

from .data import checked, fingerprint, known_faults, load, read_faults
from .extract import TAGS, extract
from .grading import Grade, Grader
from .tasks import ENFORCE, CodeTask

_grader = lru_cache(maxsize=8)(Grader)
"""The grader of a sandbox: it remembers which references pass."""


@reward(range=(0, 1))
async def passes_tests(
    rollout: Rollout[CodeTask, Any], *, sandbox: ProbedSandbox = need()
) -> Score:
    """Return 1 where all hidden tests of the task pass, else 0; for a task with weights, the sum of
    the weights of those that pass.

    Its parts are the outcome, each of `OUTCOMES` with 1 or 0, and ``tests_passed``. Raises as
    `Grader.grade`.
    """
    grade = await grade_reply(sandbox, rollout.task, rollout.reply)
    return Score(value=grade.score, parts=grade.shares, reason=grade.reason)


class Code(Environment[CodeTask, None]):
    """Programming tasks with hidden tests: MBPP, HumanEval, EvalPlus, APPS, LiveCodeBench, own
    files.

    Attributes:
        data: file of JSON lines; or a folder with ``train.jsonl``, ``test.jsonl`` and perhaps
            ``dev.jsonl``; or a data set of the hub, such as ``google-research-datasets/mbpp`` or
            ``name:configuration``.
        splits: of a file. ``"own"``: those that MBPP defines, a row's ``split``, or a tenth of the
            rows each for ``dev`` and ``test``; ``"test"``: all rows are the split ``test``.
        show_tests: tests in the prompt; -1 follows the data set: one for MBPP, none for the others.
        left_out: file that ``quintain-code check`` wrote: its rows are left out. Rows of known data
            sets whose own tests fail are always left out.
        cpu_seconds: CPU time of one solution; 0 keeps that of the row (5).
        tolerance: largest absolute or relative error of a number that a program prints, where no
            integer is expected; 0 keeps that of the row (0).
        enforce: axes that the sandbox must enforce, else nothing runs (see
            `quintain_sandbox.AXES`).
    """

    reward = passes_tests
    # solutions wait for one another where many of them hang
    limits = Limits(turns=1, reward_seconds=600.0)

    data: Annotated[str, AfterValidator(checked)] = ""
    splits: Literal["own", "test"] = "own"
    show_tests: int = -1
    left_out: str = ""
    cpu_seconds: float = 0.0
    tolerance: float = 0.0
    enforce: Axes = ENFORCE
    sandbox: ProbedSandbox = need()

    def __post_init__(self) -> None:
        checked(self.data)
        if self.show_tests < -1 or self.cpu_seconds < 0 or self.tolerance < 0:
            raise UsageError(
                f"code: show_tests is {self.show_tests}, cpu_seconds {self.cpu_seconds}, tolerance "
                f"{self.tolerance}; expected at least 0"
            )
        if self.sandbox:
            self.sandbox.require(self.enforce)

    def tasks(self, split: str) -> Iterable[CodeTask]:
        out = known_faults() | (read_faults(Path(self.left_out)) if self.left_out else {})
        changes: dict[str, Any] = {"cpu_seconds": self.cpu_seconds} if self.cpu_seconds else {}
        for task in load(self.data, split, self.splits, self.show_tests):
            exact = task.kind == "stdin" and not (task.absolute_error or task.relative_error)
            wider = {"absolute_error": self.tolerance, "relative_error": self.tolerance}
            changed = changes | (wider if self.tolerance and exact else {})
            if fingerprint(task) not in out:
                yield replace(task, id="", **changed) if changed else task

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            if task.solution:
                yield Demonstration(prompt=task.prompt, reply=self.oracle(task, ()))

    @control(scores="max")
    def oracle(self, task: CodeTask, messages: Sequence[Message]) -> str:
        """Reply with the reference."""
        return reply_of(task, task.solution)

    @control(scores="min")
    def nop(self, task: CodeTask, messages: Sequence[Message]) -> str:
        """Reply with nothing."""
        return ""

    @control(scores="min")
    def empty(self, task: CodeTask, messages: Sequence[Message]) -> str:
        """Reply with a comment instead of code."""
        return reply_of(task, dict.fromkeys(task.files, "# TODO\n"))

    @control(scores="min")
    def exits(self, task: CodeTask, messages: Sequence[Message]) -> str:
        """End the process with success before any test."""
        return reply_of(task, dict.fromkeys(task.files, "import os\nos._exit(0)\n"))


async def grade_reply(sandbox: ProbedSandbox, task: CodeTask, reply: str) -> Grade:
    """Grade the code of *reply*; raises as `Grader.grade`."""
    extraction = extract(reply, language=task.language, files=task.files)
    if not extraction.files:
        return Grade(score=0.0, outcome="no_code", total=task.total, reason=extraction.reason)
    return await _grader(sandbox).grade(task, extraction.files)


def reply_of(task: CodeTask, files: Mapping[str, str]) -> str:
    """Return a reply whose code is *files*; fences are longer than any in the code."""
    tag = TAGS.get(task.language, (task.language,))[0]
    blocks = []
    for name, text in files.items():
        mark = "```"
        while mark in text:
            mark += "`"
        info = f"{tag} {name}" if len(task.files) > 1 else tag
        blocks.append(f"{mark}{info}\n{text}" + ("" if text.endswith("\n") else "\n") + mark)
    return "\n\n".join(blocks)
