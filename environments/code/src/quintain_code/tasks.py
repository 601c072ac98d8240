"""Tasks: what the policy writes, and the tests that it does not see."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from quintain import Task
from quintain.errors import UsageError

from .names import suite_tests

Kind = Literal["function", "stdin", "suite"]

ENFORCE = ("filesystem", "network", "processes", "output", "time")
"""What a sandbox must enforce for a grade to be the solution's own work and to end."""
MODULE = "solution.py"
"""The file that the policy writes, unless a task names others."""


@dataclass(frozen=True)
class Language:
    """The file of a program, the command of the sandbox that the language needs, and how it runs."""

    file: str
    command: str
    argv: tuple[str, ...]


def _compiled(file: str, command: str, compiles: str, runs: str) -> Language:
    return Language(file, command, ("/bin/sh", "-c", f"{compiles} 1>&2 && exec {runs}"))


LANGUAGES = {
    "python": Language(MODULE, "python3", ("python3", "-I", MODULE)),
    "c": _compiled("main.c", "gcc", "gcc -O2 -o program main.c -lm", "./program"),
    "cpp": _compiled("main.cpp", "g++", "g++ -O2 -std=c++17 -o program main.cpp", "./program"),
    "java": _compiled("Main.java", "javac", "javac Main.java", "java Main"),
    "javascript": Language("main.js", "node", ("node", "main.js")),
    "bash": Language("main.sh", "bash", ("bash", "main.sh")),
    "perl": Language("main.pl", "perl", ("perl", "main.pl")),
}
"""How programs that read standard input run, by language; a task may give another command."""


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
        prefix: source that stands before the first file of every solution, such as imports.
        language: of the fenced block that holds the solution.
        argv: of a program: the command that runs it.
        in_place: of a function: the solution may change the lists, dicts and sets that it gets, and the tests see it.
        cpu_seconds: CPU time of the solution in all tests together, or in each case. The wall clock has three
            times as much, and on a loaded machine up to twelve.
        memory_mib: memory of each sandbox.
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
    prefix: str = ""
    language: str = "python"
    argv: tuple[str, ...] = ("python3", "-I", MODULE)
    in_place: bool = False
    cpu_seconds: float = 5.0
    memory_mib: int = 512
    source: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.source or self.id
        if self.kind not in get_args(Kind):
            raise UsageError(f"code task {where}: kind is {self.kind!r}; expected one of {', '.join(get_args(Kind))}")
        if not self.total:
            raise UsageError(f"code task {where} has no tests")
        if not self.files or len(set(self.files)) < len(self.files):
            raise UsageError(f"code task {where}: files is {self.files!r}; expected distinct names, at least one")
        for name in self.files:
            if name.startswith("quintain_") or name.removesuffix(".py") in sys.stdlib_module_names:
                raise UsageError(f"code task {where}: the file {name!r} has the name of a module of Python")
        if self.weights and (min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6):
            raise UsageError(f"code task {where}: the weights sum to {sum(self.weights):g}; expected shares of 1")
        if self.weights and len(self.weights) != self.total:
            raise UsageError(f"code task {where}: {len(self.weights)} weights for {self.total} tests")

    @property
    def total(self) -> int:
        """Number of tests: statements, cases, or static test functions of the suite."""
        return len(self.tests or self.cases or suite_tests(self.suite))
