"""Programs of every language in every sandbox, by whatever way they read and print, whatever the
number of cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from quintain.errors import EnvironmentFault, InfrastructureError
from quintain_env_code import CodeTask, Grade, Grader, task_of
from quintain_env_code.grading import KNOWN
from quintain_env_code.tasks import LANGUAGES
from quintain_sandbox import ProbedSandbox

from ...plugins.sandbox.service import started


@pytest.fixture(
    scope="module",
    params=["bubblewrap", "landlock", pytest.param("docker", marks=pytest.mark.ci)],
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[ProbedSandbox]:
    """With sessions (bubblewrap, docker) and without."""
    yield from started(request.param, slots=2)


@contextmanager
def skip_without_language() -> Iterator[None]:
    """A machine or image may lack a compiler."""
    try:
        yield
    except EnvironmentFault as e:
        pytest.skip(str(e))


def graded(sandbox: ProbedSandbox, task: CodeTask, code: str) -> Grade:
    with skip_without_language():
        return asyncio.run(Grader(sandbox).grade(task, {task.files[0]: code}))


def sums(language: str, cases: int, **row: Any) -> CodeTask:
    """Return a task to add two numbers, with the same case several times."""
    inputs, outputs = ["3 4\n"] * cases, ["7\n"] * cases
    return task_of(
        {"prompt": "p", "inputs": inputs, "outputs": outputs, "language": language, **row}, "row"
    )


def js(path: str) -> str:
    return (
        f"const [a, b] = require('fs').readFileSync({path}, 'utf8').trim().split(' ').map(Number);\n"
        "console.log(a + b);\n"
    )


def java(reads: str, more: str = "") -> str:
    return (
        f"import java.io.*;\nimport java.util.*;\npublic class Main {{\n{more}\n"
        f"    public static void main(String[] w) throws Exception {{\n{reads}\n    }}\n}}\n"
    )


SCAN = "Scanner s = new Scanner(System.in); System.out.println(s.nextInt() + s.nextInt());"
READER = (
    "BufferedReader r = new BufferedReader(new InputStreamReader(System.in));"
    "StringTokenizer t = new StringTokenizer(r.readLine());"
    "System.out.println(Integer.parseInt(t.nextToken()) + Integer.parseInt(t.nextToken()));"
)
FILE = 'Scanner s = new Scanner(new File("/dev/stdin")); System.out.println(s.nextInt() + s.nextInt());'
GARBAGE = (
    "long n = 0; for (int i = 0; i < 400; i++) { byte[] b = new byte[1 << 22]; n += b[i]; }" + SCAN
)
CPP = """#include <bits/stdc++.h>
int main() {{ {reads}; int a, b; if (scanf("%d%d", &a, &b) != 2) return 1; printf("%d\\n", a + b); }}
"""
STREAM = """#include <fstream>
#include <iostream>
int main() { std::ifstream f("/dev/stdin"); std::ofstream o("/dev/stdout"); int a, b; f >> a >> b; o << a + b; }
"""
PROGRAMS = {
    "js /dev/stdin": ("javascript", js("'/dev/stdin'")),
    "js 0": ("javascript", js("0")),
    "js /proc/self/fd/0": ("javascript", js("'/proc/self/fd/0'")),
    "js stdin events": (
        "javascript",
        "let s = ''; process.stdin.on('data', d => s += d);\n"
        "process.stdin.on('end', () => console.log(s.split(' ').map(Number).reduce((a, b) => a + b)));",
    ),
    "js writeFileSync": (
        "javascript",
        "const s = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);\n"
        "require('fs').writeFileSync('/dev/stdout', `${s[0] + s[1]}\\n`);",
    ),
    "bash < /dev/stdin": ("bash", "read a b < /dev/stdin\necho $((a + b))\n"),
    "bash > /dev/stdout": ("bash", "read a b\necho $((a + b)) > /dev/stdout\n"),
    "bash >> /dev/stdout": ("bash", "read a b\necho $((a + b)) >> /dev/stdout\n"),
    "bash /dev/stderr": ("bash", "read a b\necho x > /dev/stderr\necho $((a + b))\n"),
    "bash /dev/fd/0": ("bash", "read a b < /dev/fd/0\necho $((a + b))\n"),
    "bash tee": ("bash", "read a b\necho $((a + b)) | tee /dev/stderr\n"),
    "bash a substituted process": ("bash", "read a b < <(cat /dev/stdin)\necho $((a + b))\n"),
    "bash a pipe": ("bash", "cat /dev/stdin | { read a b; echo $((a + b)); }\n"),
    "awk": ("bash", "awk '{ print $1 + $2 }' /dev/stdin\n"),
    "c++ scanf": ("cpp", CPP.format(reads="")),
    "c++ freopen": ("cpp", CPP.format(reads='freopen("/dev/stdin", "r", stdin)')),
    "c++ freopen of the output": ("cpp", CPP.format(reads='freopen("/dev/stdout", "w", stdout)')),
    "c++ streams of files": ("cpp", STREAM),
    "perl /dev/stdin": (
        "perl",
        "open(F, '/dev/stdin') or die; my ($a, $b) = split ' ', <F>; print $a + $b, \"\\n\";",
    ),
    "perl /dev/stdout": (
        "perl",
        "my ($a, $b) = split ' ', <STDIN>; open(F, '>', '/dev/stdout') or die; print F $a + $b;",
    ),
    "python /dev/stdin": ("python", "print(sum(map(int, open('/dev/stdin').read().split())))"),
    "python /dev/fd/0": ("python", "print(sum(map(int, open('/dev/fd/0').read().split())))"),
    "python its own number": (
        "python",
        "import os\nprint(sum(map(int, open(f'/proc/{os.getpid()}/fd/0').read().split())))",
    ),
    "python in binary": ("python", "print(sum(map(int, open('/dev/stdin', 'rb').read().split())))"),
    "python /dev/stdout": (
        "python",
        "a, b = map(int, input().split())\nopen('/dev/stdout', 'w').write(str(a + b))",
    ),
    "python /dev/stderr": (
        "python",
        "print('x', file=open('/dev/stderr', 'w'))\nprint(sum(map(int, input().split())))",
    ),
    "python a descriptor": (
        "python",
        "import os\nf = os.open('/dev/stdin', os.O_RDONLY)\nprint(sum(map(int, os.read(f, 99).split())))",
    ),
    "python a child": (
        "python",
        "import subprocess as s\nt = s.run(['cat', '/dev/stdin'], capture_output=True).stdout\n"
        "print(sum(map(int, t.split())))",
    ),
    "java Scanner": ("java", java(SCAN)),
    "java BufferedReader": ("java", java(READER)),
    "java /dev/stdin": ("java", java(FILE)),
    "java much garbage": ("java", java(GARBAGE)),
    "java a second class": ("java", java("System.out.println(new Two().of());") + (
        "class Two { int of() { Scanner s = new Scanner(System.in); return s.nextInt() + s.nextInt(); } }"
    )),
    "java threads": ("java", java(
        f"Thread t = new Thread(() -> {{ {SCAN} }}); t.start(); t.join();"
    )),
    "java a deep recursion": ("java", java(
        f"if (deep(5000) == 5000) {{ {SCAN} }}",
        "static int deep(int n) { return n == 0 ? 0 : 1 + deep(n - 1); }",
    )),
}  # fmt: skip


@pytest.mark.keeps(
    *(
        f"{provider}-{cases}-{name}"
        for provider in ("bubblewrap", "landlock")
        for cases in (1, 2)
        for name in ("js /dev/stdin", "bash > /dev/stdout", "python /dev/stdin", "java Scanner")
    )
)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("cases", [1, 2])
def test_a_right_program_passes(sandbox: ProbedSandbox, cases: int, name: str) -> None:
    language, code = PROGRAMS[name]
    assert graded(sandbox, sums(language, cases), code).outcome == "passed"


WRONG = {
    "java": (java("System.out.println(8);"), "failed"),
    "javascript": ("console.log(8)", "failed"),
    "bash": ("echo 8", "failed"),
    "python": ("print(8)", "failed"),
}


@pytest.mark.more
@pytest.mark.parametrize("language", WRONG)
@pytest.mark.parametrize("cases", [1, 2])
def test_a_wrong_program_does_not_pass(sandbox: ProbedSandbox, cases: int, language: str) -> None:
    code, outcome = WRONG[language]
    assert graded(sandbox, sums(language, cases), code).outcome == outcome


@pytest.mark.more
@pytest.mark.parametrize("cases", [1, 2])
@pytest.mark.parametrize("language", ["c", "cpp", "java"])
def test_what_does_not_compile_is_an_error(
    sandbox: ProbedSandbox, language: str, cases: int
) -> None:
    assert graded(sandbox, sums(language, cases), "int main( {").outcome == "error"


@pytest.mark.more
@pytest.mark.parametrize("cases", [1, 2])
@pytest.mark.parametrize("language", ["cpp", "java"])
def test_a_compiler_has_time_of_its_own(sandbox: ProbedSandbox, language: str, cases: int) -> None:
    """A limit that is shorter than the compiler takes is the program's alone."""
    code = CPP.format(reads="") if language == "cpp" else java(SCAN)
    assert graded(sandbox, sums(language, cases, cpu_seconds=1.0), code).outcome == "passed"


@pytest.mark.more
@pytest.mark.parametrize("cases", [1, 2])
@pytest.mark.parametrize("language", ["cpp", "java", "python"])
def test_an_endless_program_times_out(sandbox: ProbedSandbox, language: str, cases: int) -> None:
    endless = {
        "cpp": "int main() { for (volatile int i = 0;; i++); }",
        "java": java("for (int i = 0;; i++) { if (i == -5) System.out.println(i); }"),
        "python": "while True: pass",
    }
    task = sums(language, cases, cpu_seconds=1.0)
    with skip_without_language():
        grade = asyncio.run(Grader(sandbox).once(task, {task.files[0]: endless[language]}))
    assert grade.outcome == "timeout"


DIGITS = {
    "prints": ("print(10**int(input()))", "6000\n", "1" + "0" * 6000),
    "reads": ("print(int(input()) % 7)", "1" + "0" * 5000 + "\n", str(10**5000 % 7)),
    "adds": ("print(int(input()) + 1)", "9" * 5000 + "\n", "1" + "0" * 5000),
    "formats": ("print(f'{10**int(input()):d}')", "4400\n", "1" + "0" * 4400),
    "joins": ("print(len(str(2**int(input()))))", "20000\n", "6021"),
}


@pytest.mark.keeps("bubblewrap-1-prints", "bubblewrap-2-reads")
@pytest.mark.parametrize("name", DIGITS)
@pytest.mark.parametrize("cases", [1, 2])
def test_numbers_have_any_number_of_digits(sandbox: ProbedSandbox, cases: int, name: str) -> None:
    code, given, expected = DIGITS[name]
    row = {"prompt": "p", "inputs": [given] * cases, "outputs": [expected] * cases}
    assert graded(sandbox, task_of(row, "row"), code).outcome == "passed"


@pytest.mark.more
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_that_is_known_to_pass_passes(sandbox: ProbedSandbox, language: str) -> None:
    known = KNOWN[language]
    (code,) = known.solution.values()
    assert graded(sandbox, known, code).outcome == "passed"


def test_a_language_that_does_not_run_is_no_fault_of_the_program(sandbox: ProbedSandbox) -> None:
    """A row without a reference would score every program 0."""
    task = replace(sums("java", 1), memory_mib=8)
    with (
        skip_without_language(),
        pytest.raises(InfrastructureError, match="programs in java with 8 MiB"),
    ):
        asyncio.run(Grader(sandbox).grade(task, {"Main.java": PROGRAMS["java Scanner"][1]}))
