"""Tasks: what the policy writes, and the tests that it does not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from quintain import Task
from quintain.errors import UsageError

Kind = Literal["function", "stdin", "suite"]

MODULE = "solution.py"
"""The file that the policy writes, unless a task names others."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of a program that reads standard input: its input, and the output expected of it."""

    stdin: str
    stdout: str


@dataclass(frozen=True, kw_only=True)
class CodeTask(Task):
    """A programming task.

    Attributes:
        kind: ``function``: `tests` call names that the solution defines; ``stdin``: a program runs once for each of
            `cases`; ``suite``: pytest runs the files of `suite`, which import the solution's modules.
        tests: of a function: Python source, one test each; a test passes if it runs without an exception.
        setup: of a function: Python source that runs before the tests and shares their names.
        cases: of a program.
        suite: of a suite: source by file name.
        weights: of each test, case or static test function of the suite in order of appearance; they sum to 1. Empty:
            1 if all pass, else 0.
        solution: reference by file name; it must get 1. Empty: there is none.
        files: names of the files that the policy writes.
        language: of the fenced block that holds the solution.
        argv: of a program: the command that runs it.
        seconds: wall-clock time of the tests together, or of each case.
        memory: MiB of each sandbox.
        source: where the task comes from, for messages.
    """

    kind: Kind = "function"
    tests: tuple[str, ...] = ()
    setup: str = ""
    cases: tuple[Case, ...] = ()
    suite: Mapping[str, str] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    solution: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = (MODULE,)
    language: str = "python"
    argv: tuple[str, ...] = ("python3", "-I", MODULE)
    seconds: float = 10.0
    memory: int = 512
    source: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.source or self.id
        held = {"function": self.tests, "stdin": self.cases, "suite": self.suite}
        if self.kind not in held:
            raise UsageError(f"code task {where}: kind is {self.kind!r}; expected one of {', '.join(held)}")
        if not held[self.kind]:
            raise UsageError(f"code task {where} has no tests")
        if not self.files or len(set(self.files)) < len(self.files):
            raise UsageError(f"code task {where}: files is {self.files!r}; expected distinct names, at least one")
        if self.weights and (min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6):
            raise UsageError(f"code task {where}: the weights sum to {sum(self.weights):g}; expected shares of 1")
        if self.weights and self.kind != "suite" and len(self.weights) != len(held[self.kind]):
            raise UsageError(f"code task {where}: {len(self.weights)} weights for {len(held[self.kind])} tests")
