"""Graders under attack, with real sandboxes: nothing wrong passes, and odd but right solutions
do.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from quintain.errors import EnvironmentFault, InfrastructureError
from quintain_env_code import Case, CodeTask, Grade, Grader
from quintain_sandbox import Bubblewrap

from ...lanes import asked_for, mostly_slow
from ...plugins.sandbox.service import left_behind
from .payloads import (
    FUNCTION,
    HONEST,
    PROGRAMS,
    REPLIES,
    SETUP,
    SPEAKS,
    STDIN_CASES,
    TESTS,
    Payload,
)
from .suites import STACK, SUITE, SUITES

ADD = CodeTask(
    prompt="Add.",
    tests=TESTS,
    setup=SETUP,
    cpu_seconds=10.0,
    solution={"solution.py": HONEST["plain"]},
    source="add",
)
PILE = CodeTask(
    prompt="Stack.",
    kind="suite",
    suite=SUITE,
    files=("stack.py",),
    solution={"stack.py": STACK},
    cpu_seconds=10.0,
)
CASES = tuple(Case(stdin=a, stdout=b) for a, b in STDIN_CASES)
SUM = CodeTask(prompt="Sum.", kind="stdin", cases=CASES, cpu_seconds=10.0)
ONE = CodeTask(prompt="Sum.", kind="stdin", cases=CASES[:1], cpu_seconds=10.0)
SUMMED = "print(sum(map(int, input().split())))\n"
SHORT = 0.7
"""Seconds of attacks: some use up their time."""


def graded(sandbox: Bubblewrap, task: CodeTask, *solutions: str) -> list[Grade]:
    """The grades of single-file *solutions*, two at a time."""

    async def grades() -> list[Grade]:
        grader, room = Grader(sandbox), asyncio.Semaphore(2)

        async def one(code: str) -> Grade:
            async with room:
                return await grader.once(task, {task.files[0]: code})

        return list(await asyncio.gather(*map(one, solutions)))

    return asyncio.run(grades())


def grade(sandbox: Bubblewrap, code: str, *tests: str, **fields: object) -> Grade:
    task = CodeTask(prompt="", tests=tests, **fields)  # type: ignore[arg-type]
    return graded(sandbox, task, code)[0]


def test_every_class_of_attack_has_payloads() -> None:
    """G10 and G15 are about images and extraction, G19 and G20 about right solutions."""
    payloads = [*FUNCTION, *SUITES, *PROGRAMS]
    assert len(payloads) >= 60
    for group in (FUNCTION, SUITES, PROGRAMS):
        assert len({p.name for p in group}) == len(group)
    classes = {c for p in payloads for c in p.classes.split()}
    assert {f"G{n}" for n in range(1, 19)} - {"G15"} == classes
    assert len(HONEST) >= 30


def attacked(
    sandbox: Bubblewrap, *groups: tuple[CodeTask, tuple[Payload, ...]]
) -> dict[str, tuple[Grade, Grade]]:
    """The grade of each attack by name, and that of an honest program right after it."""

    async def grades() -> dict[str, tuple[Grade, Grade]]:
        grader, room = Grader(sandbox), asyncio.Semaphore(2)

        async def one(task: CodeTask, payload: Payload) -> tuple[str, tuple[Grade, Grade]]:
            async with room:
                attack = await grader.once(
                    replace(task, cpu_seconds=SHORT), {task.files[0]: payload.code}
                )
                return f"{task.kind} {payload.name}", (
                    attack,
                    await grader.once(ONE, {ONE.files[0]: SUMMED}),
                )

        if any(task is PILE for task, _ in groups):
            assert (await grader.once(PILE, PILE.solution)).outcome == "passed"
        return dict(
            await asyncio.gather(*(one(task, p) for task, payloads in groups for p in payloads))
        )

    return asyncio.run(grades())


@pytest.fixture(scope="module")
def attacks(sandbox: Bubblewrap, request: pytest.FixtureRequest) -> dict[str, tuple[Grade, Grade]]:
    names = asked_for(request, "name")
    groups = ((ADD, FUNCTION), (SUM, PROGRAMS))
    return attacked(
        sandbox,
        *(
            (task, tuple(p for p in group if f"{task.kind} {p.name}" in names))
            for task, group in groups
        ),
    )


@pytest.fixture(scope="module")
def attacks_on_suites(sandbox: Bubblewrap) -> dict[str, tuple[Grade, Grade]]:
    return attacked(sandbox, (PILE, SUITES))


def held(attack: Grade, honest: Grade) -> None:
    """The attack has grade 0, and the honest program that runs next in the same sandbox has 1."""
    assert attack.score == 0, attack
    assert attack.outcome != "passed"
    assert honest.score == 1.0, honest
    assert honest.outcome == "passed", honest


def first_of_each_class(kind: str, payloads: tuple[Payload, ...]) -> set[str]:
    """Names of attacks, so that each class of them is in each test run."""
    found: dict[str, str] = {}
    for payload in payloads:
        for name in payload.classes.split():
            found.setdefault(name, f"{kind} {payload.name}")
    return set(found.values())


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        [*(f"function {p.name}" for p in FUNCTION), *(f"stdin {p.name}" for p in PROGRAMS)],
        first_of_each_class("function", FUNCTION) | first_of_each_class("stdin", PROGRAMS),
    ),
)
def test_no_attack_passes(attacks: dict[str, tuple[Grade, Grade]], name: str) -> None:
    held(*attacks[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"suite {p.name}" for p in SUITES])
def test_no_attack_on_a_suite_passes(
    attacks_on_suites: dict[str, tuple[Grade, Grade]], name: str
) -> None:
    held(*attacks_on_suites[name])


@pytest.mark.slow
def test_no_reply_of_a_solution_that_speaks_the_protocol_passes(sandbox: Bubblewrap) -> None:
    """A solution that writes its replies itself gains nothing by them."""
    codes = [SPEAKS.replace("REPLIES", replies) for replies in REPLIES.values()]
    grades = dict(
        zip(REPLIES, graded(sandbox, replace(ADD, cpu_seconds=SHORT), *codes), strict=True)
    )
    assert {name: g for name, g in grades.items() if g.score or g.outcome == "passed"} == {}


@pytest.mark.parametrize("part", mostly_slow(range(4), ["0"]))
def test_odd_but_right_solutions_pass(sandbox: Bubblewrap, part: int) -> None:
    names = [*HONEST][part::4]
    grades = dict(zip(names, graded(sandbox, ADD, *(HONEST[n] for n in names)), strict=True))
    assert {name: g for name, g in grades.items() if g.score != 1} == {}


def test_a_right_suite_passes(sandbox: Bubblewrap) -> None:
    (pile,) = graded(sandbox, PILE, STACK)
    assert pile.score == 1.0, pile
    assert pile.total == 5, pile


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def f(x):\n    return x + 1\n", "passed"),
        ("def f(x):\n    return x\n", "failed"),
        ("def f(x):\n    return 1 / 0\n", "error"),
        ("def g(x):\n    return x + 1\n", "error"),
        ("def f(x:\n", "error"),
        ("raise RuntimeError\n", "error"),
        ("def f(x):\n    while True: pass\n", "timeout"),
        ("def f(x):\n    return len(b'x' * (1 << 30))\n", "error"),
        ("import os\ndef f(x):\n    os.kill(os.getpid(), 9)\n    os._exit(3)\n", "crashed"),
        ("def f(x):\n    return object()\n", "unsupported"),
        ("def f(x):\n    return 'x' * (17 << 20)\n", "unsupported"),
    ],
)
def test_the_outcome_says_what_happened(sandbox: Bubblewrap, code: str, outcome: str) -> None:
    got = grade(sandbox, code, "assert f(1) == 2", cpu_seconds=SHORT, memory_mib=256)
    expected = {outcome, "memory"} if "1 << 30" in code else {outcome}
    assert got.outcome in expected, got
    assert got.score == float(outcome == "passed")


VALUES = """
import collections, datetime, decimal, fractions
CASES = [None, True, 0, -1, 1.5, -0.0, float("inf"), "", chr(0xD800), "\\x00\\n", b"\\xff", bytearray(b"a"), 1j, ...,
    [], [[]], (), (1,), {1, 2}, frozenset({"a"}), {}, {1: "a", (2, 3): [4]}, {"$": 1, "tuple": [2]}, range(3),
    collections.deque([1], 3), decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.date(2024, 2, 29),
    datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.timedelta(1, 2, 3), int, ValueError, len]
"""


def test_values_cross_exactly_in_both_directions(sandbox: Bubblewrap) -> None:
    test = (
        "for case in CASES:\n    out = same(case)\n    assert type(out) is type(case) and "
        "repr(out) == repr(case), case"
    )
    assert grade(sandbox, "def same(x):\n    return x\n", test, setup=VALUES).outcome == "passed"
    large = "assert same(-(10**5000)) == -(10**5000)"
    assert grade(sandbox, "def same(x):\n    return x\n", large).outcome == "passed"
    converted = "assert same([1]) == {1: 1} and type(same([1])) is dict"
    code = (
        "from collections import defaultdict\ndef same(x):\n    return defaultdict(int, {1: 1})\n"
    )
    assert grade(sandbox, code, converted).outcome == "passed"
    counted = "assert same('aab') == {'a': 2, 'b': 1}"
    assert grade(sandbox, "from collections import Counter as same\n", counted).outcome == "passed"


def test_objects_stay_with_the_solution_and_come_back_as_arguments(sandbox: Bubblewrap) -> None:
    code = "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\n"
    code += "def depth(n):\n    return 0 if n is None else 1 + depth(n.left)\n"
    setup = "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)"
    got = grade(sandbox, code, "assert depth(root) == 3", "assert root.left.v == 2",
    "assert root.left == None or True",
                "assert root.left is root.left", setup=setup)  # fmt: skip
    assert got.passed == 4, got
    assert got.outcome == "passed", got


def test_functions_of_the_tests_can_be_called(sandbox: Bubblewrap) -> None:
    code = "def twice(f, x):\n    return f(f(x))\n"
    code += (
        "def safe(f):\n    try:\n        f()\n    except KeyError as e:\n        return str(e)\n"
    )
    nested = "assert twice(lambda x: twice(lambda y: y * 2, x), 1) == 16"
    raising = "def g():\n    raise KeyError('k')\nassert 'k' in safe(g)"
    got = grade(sandbox, code, "assert twice(lambda x: x + 1, 3) == 5", nested, raising)
    assert got.passed == 3, got
    assert got.outcome == "passed", got


def test_exceptions_keep_class_arguments_and_lineage(sandbox: Bubblewrap) -> None:
    code = "class A(ValueError):\n    pass\nclass B(A):\n    pass\n"
    code += "def f(n):\n    e = B('b', n)\n    e.n = n\n    raise e\ndef g():\n    return {}['x']\n"
    test = "try:\n    f(3)\n    assert False\nexcept A as e:\n    assert type(e) is B\n"
    test += "    assert (e.args, e.n) == (('b', 3), 3)"
    also = "try:\n    g()\n    assert False\nexcept KeyError as e:\n    assert e.args == ('x',)"
    got = grade(sandbox, code, test, also, test.replace("A as", "ValueError as"))
    assert got.passed == 3, got
    assert got.outcome == "passed", got


def test_arguments_change_in_place_only_where_the_task_says_so(sandbox: Bubblewrap) -> None:
    code = "def clear(x):\n    x.clear()\n"
    test = "x = [1, 2]\nclear(x)\nassert x == []"
    assert grade(sandbox, code, test, in_place=True).outcome == "passed"
    assert grade(sandbox, code, test).outcome == "failed"
    forged = "import os\ndef clear(x):\n    os.write(3, b'x')\n"
    assert grade(sandbox, forged, test, in_place=True).outcome != "passed"


def test_weights_count_the_tests_that_pass_and_no_others(sandbox: Bubblewrap) -> None:
    """Without weights a partly right solution has 0; a test that never ends earns nothing."""
    code = "def f(x):\n    while x > 1: pass\n    return x\n"
    tests = ("assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2", "assert f(0) == 0")
    weighted = grade(sandbox, code, *tests, weights=(0.2, 0.3, 0.4, 0.1), cpu_seconds=SHORT)
    assert weighted.score == 0.5
    assert weighted.outcome == "timeout"
    assert weighted.passed == 2
    assert weighted.total == 4
    assert grade(sandbox, code, *tests, cpu_seconds=SHORT).score == 0
    (program,) = graded(
        sandbox, replace(SUM, weights=(0.5, 0.25, 0.25)), "print(3 if input() == '1 2' else 0)\n"
    )
    assert program.score == 0.75
    assert program.outcome == "failed"
    assert program.passed == 2


def test_a_loaded_machine_lengthens_the_wall_clock_and_not_the_cpu_time(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that waits for a core passes, up to four times the usual limit; one that computes
    does not gain.
    """
    cores = os.cpu_count() or 1
    waits = "import time\ndef f(x):\n    time.sleep(2)\n    return x\n"
    computes = "def f(x):\n    while True: pass\n"
    for load, outcome in ((0.0, "timeout"), (1000.0 * cores, "passed")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        assert outcome == grade(sandbox, waits, "assert f(1) == 1", cpu_seconds=0.5).outcome
    assert grade(sandbox, computes, "assert f(1) == 1", cpu_seconds=0.5).outcome == "timeout"


def test_a_task_whose_reference_fails_is_a_fault_and_no_zero(sandbox: Bubblewrap) -> None:
    wrong = CodeTask(
        prompt="",
        tests=("assert f() == 1",),
        solution={"solution.py": "def f(): return 2"},
        source="row 7",
    )
    broken = CodeTask(
        prompt="", tests=("assert f() ==== 1",), solution={"solution.py": "def f(): return 2"}
    )
    open_file = CodeTask(
        prompt="",
        tests=("assert f(open('/dev/null')) == 1",),
        solution={"solution.py": "def f(x): return 1"},
    )
    right = {"solution.py": "def f(*x): return 1\n"}
    assert asyncio.run(Grader(sandbox).grade(wrong, right)).score == 1
    for task, message in ((wrong, "row 7.*does not pass: failed"), (open_file, "TextIOWrapper")):
        with pytest.raises(EnvironmentFault, match=message):
            asyncio.run(Grader(sandbox).grade(task, {"solution.py": "def f(*x): return 3\n"}))
    with pytest.raises(ValueError, match="no Python"):
        asyncio.run(Grader(sandbox).grade(broken, right))


def test_a_sandbox_that_cannot_run_a_kind_is_no_fault_of_the_row(sandbox: Bubblewrap) -> None:
    """Neither a row nor a solution gets the blame, with and without a reference; other kinds are
    graded.
    """

    class WithoutPytest(Bubblewrap):
        def __init__(self) -> None:
            pass

        run = sandbox.run

        def start(self, files, *args, **keywords):  # type: ignore[no-untyped-def]
            files = {name: data for name, data in files.items() if name != "pytest.zip"}
            return sandbox.start(files, *args, **keywords)

    grader = Grader(WithoutPytest())
    for task in (PILE, replace(PILE, solution={})):
        with pytest.raises(
            InfrastructureError,
            match="bubblewrap|withoutpytest cannot grade tasks of the kind 'suite'",
        ):
            asyncio.run(grader.grade(task, {"stack.py": STACK}))
    assert (
        asyncio.run(grader.grade(ADD, {"solution.py": "def add(a, b):\n    return a\n"})).score == 0
    )


WRITES = """
import os
def f(x):
    line = LINE
    for fd in range(3, 32):
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(fd, rest):]
        except OSError:
            pass
"""
COLLIDING = (
    "b'[\"value\",2,{\"set\":[%s]}]\\n' % b','.join(b'%d' % (i * ((1 << 61) - 1)) for i in "
    "range(1, 300000))"
)


@pytest.mark.parametrize(
    ("code", "test", "outcome"),
    [
        (WRITES.replace("LINE", COLLIDING), "assert f(1) == 2", {"timeout"}),
        (
            WRITES.replace("LINE", "b'[' * (15 << 20) + b'\\n'"),
            "assert f(1) == 2",
            {"error", "timeout"},
        ),
        pytest.param(
            "def f(n):\n    return range(10**18)\n",
            "assert sum(f(3)) == 6",
            {"timeout"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["colliding set", "brackets", "range"],
)
def test_the_tests_end_soon_after_the_limit_of_the_solution(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch, code: str, test: str, outcome: str
) -> None:
    """Work that a solution makes for the tests does not take a slot for longer: the limit is 1.5 s,
    and 2 s more. Where the machine is busy, that ends the brackets before they are an error.
    """
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    got = grade(sandbox, code, test, cpu_seconds=0.5)
    assert got.score == 0
    assert got.outcome in outcome


def test_a_missing_language_is_a_fault_and_no_zero(sandbox: Bubblewrap) -> None:
    task = replace(SUM, language="cobol", argv=("cobc", "-x", "main.cob"), files=("main.cob",))
    with pytest.raises(EnvironmentFault, match="the sandbox has no cobc"):
        asyncio.run(Grader(sandbox).grade(task, {"main.cob": "STOP RUN."}))


@pytest.mark.parametrize(
    ("language", "command", "code"),
    [
        (
            "c",
            "gcc",
            '#include <stdio.h>\nint main(){int a,b;scanf("%d '
            '%d",&a,&b);printf("%d\\n",a+b);return 0;}\n',
        ),
        ("bash", "bash", "read a b\necho $((a + b))\n"),
        ("perl", "perl", "my ($a, $b) = split ' ', <STDIN>;\nprint $a + $b, \"\\n\";\n"),
    ],
)
def test_other_languages_run_by_their_command(
    sandbox: Bubblewrap, language: str, command: str, code: str
) -> None:
    from quintain_env_code.tasks import LANGUAGES

    known = LANGUAGES[language]
    task = replace(SUM, language=language, argv=known.argv, files=(known.file,))
    try:
        got = asyncio.run(Grader(sandbox).grade(task, {known.file: code}))
    except EnvironmentFault as e:
        pytest.skip(str(e))
    assert got.score == 1.0, got
    assert got.passed == 3, got


def test_a_killed_sandbox_is_an_infrastructure_error(sandbox: Bubblewrap) -> None:
    """Whichever of the two boxes is killed from outside, there is no grade."""

    async def killed() -> Grade:
        code = {"solution.py": "import time\ndef f(x):\n    time.sleep(20)\n"}
        task = CodeTask(prompt="", tests=("assert f(1) == 2",), cpu_seconds=10.0)
        running = asyncio.create_task(Grader(sandbox).once(task, code))
        for _ in range(1000):
            if len(boxes := _boxes()) == 2:
                break
            await asyncio.sleep(0.02)
        os.kill(boxes[0], signal.SIGKILL)
        return await running

    with pytest.raises(InfrastructureError):
        asyncio.run(killed())


def _boxes() -> list[int]:
    """Process ids of the running bubblewraps of this process, whatever other processes of its
    started them.
    """
    return [int(name.split()[1]) for name in left_behind(None) if name.endswith(" bwrap")]


SUITE_OF_SIX = """
import pytest
from m import f

def test_plain():
    assert f() == 1

@pytest.mark.skip
def test_skipped():
    assert f() == 1

@pytest.mark.xfail
def test_expected_to_fail():
    assert f() == 1

@pytest.mark.parametrize("x", [])
def test_without_parameters(x):
    assert f() == 1

@pytest.fixture
def test_fixture():
    assert f() == 1

def test_skips_itself():
    pytest.skip("later")
"""


def test_a_suite_counts_each_test_of_its_files(sandbox: Bubblewrap) -> None:
    """Skipped, expected to fail, and never run are not passed; weights are those of the tests in
    the files.
    """
    right = "def f():\n    return 1\n"
    weights = (0.25, 0.15, 0.15, 0.15, 0.15, 0.15)
    task = CodeTask(
        prompt="", kind="suite", suite={"test_m.py": SUITE_OF_SIX}, files=("m.py",), weights=weights
    )
    (some,) = graded(sandbox, task, right)
    assert some.score == 0.25, some
    assert some.passed == 1, some
    assert some.total == 6, some
    gated = (
        "import pytest, m\nif m.f() == 1:\n    pytest.skip(allow_module_level=True)\n"
        f"{SUITE_OF_SIX}"
    )
    (none,) = graded(sandbox, replace(task, suite={"test_m.py": gated}), right)
    assert none.score == 0.0, none
    assert none.passed == 0, none
    assert none.total == 7, none


OPERATORS = """
from m import Money, message, ratio

def test_ratio():
    assert abs(ratio() - 1.5) < 1e-9
    assert ratio() > 1 and 3 * ratio() == 4.5 and ratio() in (1.5, 2)

def test_message():
    assert "done" in message()

def test_money():
    assert Money(2) + 3 == Money(5) and Money(2) * 2 == 4 and 2 in Money(2) and Money(1) < Money(2) < 3
"""
MONEY = """
class Money:
    def __init__(self, n): self.n = n
    def __add__(self, other): return Money(self.n + getattr(other, "n", other))
    def __mul__(self, k): return Money(self.n * k)
    def __eq__(self, other): return self.n == getattr(other, "n", other)
    def __lt__(self, other): return self.n < getattr(other, "n", other)
    def __contains__(self, n): return n <= self.n
"""
KNOWS = """
class Knows:
    __sub__ = __rmul__ = lambda self, other: 0 if other == 1.5 else 4.5
    __abs__ = lambda self: 0
    __eq__ = __gt__ = __contains__ = lambda self, other: True
"""


def test_objects_take_part_in_operations_only_where_the_reference_has_objects(
    sandbox: Bubblewrap,
) -> None:
    """Elsewhere their methods would see what the tests expect, and answer it."""
    right = MONEY + "def ratio():\n    return 1.5\ndef message():\n    return 'all done'\n"
    task = CodeTask(
        prompt="",
        kind="suite",
        suite={"test_m.py": OPERATORS},
        files=("m.py",),
        solution={"m.py": right},
    )
    other = right.replace("self.n", "self._n")
    objects = MONEY + KNOWS + "def ratio():\n    return Knows()\nmessage = ratio\n"
    money = MONEY + KNOWS + "def ratio():\n    return 1.5\ndef message():\n    return Money(9)\n"
    money = money.replace("n <= self.n", "True")
    grades = graded(
        sandbox, task, right, other.replace('other, "n"', 'other, "_n"'), objects, money
    )
    assert [g.outcome for g in grades] == ["passed", "passed", "unsupported", "unsupported"], grades
    assert [g.passed for g in grades] == [3, 3, 1, 2]
    (alone,) = graded(sandbox, replace(task, solution={}), right)
    assert alone.passed == 2, "without a reference nothing says what is allowed"
    assert alone.outcome == "unsupported", "without a reference nothing says what is allowed"


def test_a_suite_imports_several_modules_and_packages(sandbox: Bubblewrap) -> None:
    suite = {
        "test_shop.py": "import shop.cart\nfrom shop.items import Item, RATE\n\n\ndef "
        "test_total():\n"
        "    cart = shop.cart.Cart()\n    cart.add(Item('a', 2.5))\n    assert cart.total() == 2.5 "
        "* RATE\n"
    }
    files = {
        "shop/items.py": (
            "RATE = 1.5\nclass Item:\n    def __init__(self, name, price):\n        self.price = "
            "price\n"
        ),
        "shop/cart.py": "from shop.items import RATE\nclass Cart:\n    def __init__(self):\n       "
        " self.items = []\n"
        "    def add(self, x):\n        self.items.append(x)\n"
        "    def total(self):\n        return sum(x.price for x in self.items) * RATE\n",
    }
    task = CodeTask(prompt="", kind="suite", suite=suite, files=tuple(files), solution=files)
    assert asyncio.run(Grader(sandbox).grade(task, files)).score == 1
