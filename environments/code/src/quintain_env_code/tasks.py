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
    """How programs of a language run.

    Attributes:
        file: the name of the program's file.
        command: what the sandbox must have.
        runs: the command that runs it; ``{heap}`` stands for the mebibytes that Java may use for
            objects.
        builds: the words of a shell that compile it before; empty: nothing is to be compiled.
        known: a program that prints what it reads, for a sandbox to show that it runs the language.
    """

    file: str
    command: str
    runs: tuple[str, ...]
    builds: str = ""
    known: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """One command that compiles and runs it; further words are its arguments."""
        return self.wrapped(self.runs)

    def wrapped(self, runs: tuple[str, ...]) -> tuple[str, ...]:
        """Return one command that compiles it, and goes on with *runs*."""
        if not self.builds:
            return runs
        return ("/bin/sh", "-c", f'{self.builds} 1>&2 && exec "$@"', "sh", *runs)


_C = "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); }\n"
_JAVA = """
public class Main {
    public static void main(String[] words) throws java.io.IOException {
        System.in.transferTo(System.out);
        System.out.flush();
    }
}
"""
# A sandbox may bound what a process reserves: without these, Java reserves more than 2 GiB.
_JVM = "-XX:+UseSerialGC -XX:CompressedClassSpaceSize=32m -XX:ReservedCodeCacheSize=32m"
_JAVAC = " ".join(f"-J{word}" for word in (*_JVM.split(), "-Xmx160m"))

LANGUAGES = {
    "python": Language(
        MODULE,
        "python3",
        ("python3", "-I", MODULE),
        known="import sys\nsys.stdout.write(sys.stdin.read())\n",
    ),
    "c": Language("main.c", "gcc", ("./program",), "gcc -O2 -o program main.c -lm", known=_C),
    "cpp": Language(
        "main.cpp", "g++", ("./program",), "g++ -O2 -std=c++17 -o program main.cpp", known=_C
    ),
    "java": Language(
        "Main.java",
        "javac",
        ("env", "MALLOC_ARENA_MAX=1", "java", *_JVM.split(), "-Xmx{heap}m", "Main"),
        f"MALLOC_ARENA_MAX=1 javac {_JAVAC} Main.java",
        known=_JAVA,
    ),
    "javascript": Language(
        "main.js",
        "node",
        ("node", "main.js"),
        known="process.stdin.pipe(process.stdout);\n",
    ),
    "bash": Language("main.sh", "bash", ("bash", "main.sh"), known="cat\n"),
    "perl": Language("main.pl", "perl", ("perl", "main.pl"), known="print while <STDIN>;\n"),
}
"""How programs that read standard input run, by language; a task may give another command."""


def language_of(file: str, where: str) -> Language:
    """Return the language of a checker or an interactor, by the suffix of its main file.

    Raises:
        UsageError: no known language has this suffix.
    """
    suffix = file.rpartition(".")[2]
    known = {language.file.rpartition(".")[2]: language for language in LANGUAGES.values()}
    if suffix not in known:
        raise UsageError(
            f"code task {where}: {file!r} has no known suffix; expected one of {', '.join(known)}"
        )
    return known[suffix]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of a program that reads standard input.

    Attributes:
        stdout: the output expected of it; a checker may accept others.
        also: further outputs that are accepted.
    """

    stdin: str
    stdout: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CodeTask(Task):
    """A programming task.

    Attributes:
        kind: ``function``: `tests` call names that the solution defines; ``stdin``: a program runs
            once for each of `cases`; ``suite``: pytest runs the files of `suite`, which import the
            solution's modules.
        tests: of a function: Python source, one test each; a test passes if it runs without an
            exception.
        setup: of a function: Python source that runs before the tests and shares their names.
        cases: of a program.
        absolute_error, relative_error: of a number in the output of a program: it is accepted
            within either.
        checker: of a program: a program by file name, the first its main file, that judges the
            output. It runs in a sandbox of its own with the names of three files: input, output,
            expected output. Exit status 0 accepts.
        interactor: of a program: a program, as *checker*, that talks with it over pipes, and judges
            it.
        suite: of a suite: source by file name.
        weights: of each test, case or static test function of the suite in order of appearance;
            they sum to 1. Empty: 1 if all pass, else 0.
        solution: reference by file name; it must get 1. Empty: there is none.
        files: names of the files that the policy writes.
        prefix: source that stands before the first file of every solution, such as imports.
        language: of the fenced block that holds the solution.
        argv: of a program: the command that runs it.
        in_place: of a function: the solution may change the lists, dicts and sets that it gets, and
            the tests see it.
        cpu_seconds: CPU time of the solution in all tests together, or in each case. The wall clock
            has three times as much, and on a loaded machine up to twelve.
        memory_mib: memory of each sandbox.
        source: where the task comes from, for messages.
    """

    kind: Kind = "function"
    tests: tuple[str, ...] = ()
    setup: str = ""
    cases: tuple[Case, ...] = ()
    absolute_error: float = 0.0
    relative_error: float = 0.0
    checker: Mapping[str, str] = field(default_factory=dict)
    interactor: Mapping[str, str] = field(default_factory=dict)
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
            raise UsageError(
                f"code task {where}: kind is {self.kind!r}; expected one of "
                f"{', '.join(get_args(Kind))}"
            )
        if not self.total:
            raise UsageError(f"code task {where} has no tests")
        if not self.files or len(set(self.files)) < len(self.files):
            raise UsageError(
                f"code task {where}: files is {self.files!r}; expected distinct names, at least one"
            )
        for name in self.files:
            if name.startswith("quintain_") or name.removesuffix(".py") in sys.stdlib_module_names:
                raise UsageError(
                    f"code task {where}: the file {name!r} has the name of a module of Python"
                )
        if min(self.absolute_error, self.relative_error) < 0:
            raise UsageError(f"code task {where}: a tolerance is below 0; expected at least 0")
        if (self.checker or self.interactor) and self.kind != "stdin":
            raise UsageError(
                f"code task {where}: only programs (kind 'stdin') have a checker or an interactor"
            )
        for files in filter(None, (self.checker, self.interactor)):
            language_of(next(iter(files)), where)
        if self.weights and (min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6):
            raise UsageError(
                f"code task {where}: the weights sum to {sum(self.weights):g}; expected shares of 1"
            )
        if self.weights and len(self.weights) != self.total:
            raise UsageError(
                f"code task {where}: {len(self.weights)} weights for {self.total} tests"
            )

    @property
    def total(self) -> int:
        """Number of tests: statements, cases, or static test functions of the suite."""
        return len(self.tests or self.cases or suite_tests(self.suite))
