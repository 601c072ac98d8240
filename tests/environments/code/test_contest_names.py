"""Functions and methods of contests have the names, the recursion and the digits that the graders of
their data sets give them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain_env_code import Grader, task_of
from quintain_env_code.literals import literal, read_json, whole_number
from quintain_sandbox import ProbedSandbox

from ...lanes import examples
from ...plugins.sandbox.service import started

STARTER = "class Solution:\n    def f(self, xs: List[int]) -> int:\n        "
LONG = "1" + "0" * 6000


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProbedSandbox]:
    yield from started("bubblewrap", slots=2)


def live_code_bench(given: str, expected: str) -> dict[str, Any]:
    case = {"input": given, "output": expected, "testtype": "functional"}
    return {
        "question_content": "q",
        "starter_code": STARTER,
        "public_test_cases": json.dumps([case]),
        "private_test_cases": "[]",
        "metadata": json.dumps({"func_name": "f"}),
    }


def apps(given: str, expected: str) -> dict[str, Any]:
    calls = f'{{"fn_name": "f", "inputs": [{given}], "outputs": [{expected}]}}'
    return {"question": "q", "input_output": calls, "starter_code": STARTER}


def prime(given: Any, expected: Any) -> dict[str, Any]:
    case = {"type": "function_call", "fn_name": "f", "input": given, "output": expected}
    return {"prompt": "q", "verification_info": {"language": "python", "test_cases": [case]}}


def outcome(sandbox: ProbedSandbox, row: dict[str, Any], code: str) -> str:
    task = task_of(row, "row", written=False)
    return asyncio.run(Grader(sandbox).grade(task, {"solution.py": code})).outcome


def method(body: str, before: str = "") -> str:
    return (
        f"{before}class Solution:\n    def f(self, xs: List[int]) -> int:\n        return {body}\n"
    )


BODIES = {
    "Counter": ("Counter(xs).most_common(1)[0][0]", "1"),
    "defaultdict": ("len(defaultdict(int))", "0"),
    "deque": ("deque(xs)[0]", "1"),
    "OrderedDict": ("len(OrderedDict())", "0"),
    "heapify": ("heapify(xs) or xs[0]", "1"),
    "heappush": ("heappop(xs)", "1"),
    "nlargest": ("nlargest(1, xs)[0]", "3"),
    "bisect_left": ("bisect_left(xs, 2)", "1"),
    "insort": ("insort(xs, 2) or xs[2]", "2"),
    "accumulate": ("max(accumulate(xs))", "6"),
    "combinations": ("len(list(combinations(xs, 2)))", "3"),
    "permutations": ("len(list(permutations(xs)))", "6"),
    "product": ("len(list(product(xs, xs)))", "9"),
    "pairwise": ("len(list(pairwise(xs)))", "2"),
    "chain": ("sum(chain(xs, xs))", "12"),
    "reduce": ("reduce(mul, xs)", "6"),
    "gcd": ("gcd(12, 18)", "6"),
    "lcm": ("lcm(2, 3)", "6"),
    "sqrt": ("int(sqrt(9))", "3"),
    "inf": ("0 if inf > 1 else 1", "0"),
    "comb": ("comb(4, 2)", "6"),
    "math": ("math.isqrt(9)", "3"),
    "collections": ("collections.deque(xs)[0]", "1"),
    "itertools": ("sum(itertools.chain(xs))", "6"),
    "functools": ("functools.reduce(lambda a, b: a + b, xs)", "6"),
    "heapq": ("heapq.nsmallest(1, xs)[0]", "1"),
    "bisect": ("bisect.bisect(xs, 2)", "2"),
    "itemgetter": ("itemgetter(1)(xs)", "2"),
    "ascii_lowercase": ("len(ascii_lowercase)", "26"),
    "string": ("len(string.digits)", "10"),
    "re": ("len(re.findall('a', 'aba'))", "2"),
    "deepcopy": ("deepcopy(xs)[0]", "1"),
    "mean": ("int(mean(xs))", "2"),
    "sys": ("int(sys.maxsize > 1)", "1"),
    "Optional": ("len(str(Optional[int])) * 0", "0"),
    "pow of Python": ("pow(2, 3, 5)", "3"),
    "abs of Python": ("abs(-1)", "1"),
    "open of Python": ("int(callable(open))", "1"),
    "min of Python": ("min(xs)", "1"),
    "fractions": ("int(fractions.Fraction(4, 2))", "2"),
}
CODES = {
    "a cache": (method("self.g(3)", "@cache\ndef h(n): return n\n") + "    def g(self, n): return h(n)\n", "3"),
    "a cached method": (
        "class Solution:\n    @lru_cache(None)\n    def g(self, n): return n\n"
        "    def f(self, xs: List[int]) -> int: return self.g(3)\n", "3"),
    "an import of the future": (method("1", "from __future__ import annotations\n"), "1"),
    "an import of the future behind a text": (
        method("1", '"""Mine."""\nfrom __future__ import annotations\n\n'), "1"),
    "two imports of the future": (
        method("1", "from __future__ import annotations\nfrom __future__ import (division,\n  generators)\n"), "1"),
    "a name of its own": (method("gcd(1, 2)", "def gcd(a, b): return 7\n"), "7"),
    "a recursion of 3,000": (
        method("g(3000)", "def g(n): return 0 if n == 0 else 1 + g(n - 1)\n"), "3000"),
    "a recursion of 20,000": (
        method("g(20000)", "def g(n): return 0 if n == 0 else 1 + g(n - 1)\n"), "20000"),
    "a recursion of a method": (
        "class Solution:\n    def g(self, n): return 0 if n == 0 else 1 + self.g(n - 1)\n"
        "    def f(self, xs): return self.g(5000)\n", "5000"),
    "a long number": (method("10 ** 6000"), LONG),
    "a long number as text": (method("len(str(10 ** 6000))"), "6001"),
    "a long text as a number": (method("int('1' + '0' * 5000) % 7"), str(10**5000 % 7)),
}  # fmt: skip
SOLVED = {name: (method(body), expected) for name, (body, expected) in BODIES.items()} | CODES
KEPT = ("Counter", "inf", "math", "a cached method", "an import of the future", "a long number")


@pytest.mark.keeps(*KEPT, "a recursion of 20,000")
@pytest.mark.parametrize("name", SOLVED)
def test_a_method_of_live_code_bench_passes(sandbox: ProbedSandbox, name: str) -> None:
    code, expected = SOLVED[name]
    assert outcome(sandbox, live_code_bench("[1, 2, 3]", expected), code) == "passed"


@pytest.mark.more
@pytest.mark.parametrize("name", KEPT)
def test_a_method_of_apps_passes(sandbox: ProbedSandbox, name: str) -> None:
    code, expected = SOLVED[name]
    assert outcome(sandbox, apps("[[1, 2, 3]]", expected), code) == "passed"


@pytest.mark.more
@pytest.mark.parametrize("body", ["max(accumulate(xs))", "reduce(mul, xs)", "math.lcm(*xs)"])
def test_a_function_of_prime_intellect_passes(sandbox: ProbedSandbox, body: str) -> None:
    row = prime([[1, 2, 3]], 6)
    assert outcome(sandbox, row, f"def f(xs):\n    return {body}\n") == "passed"


@pytest.mark.more
@pytest.mark.parametrize("body", ["5", "undefined(xs)", "g(60000)"])
def test_a_wrong_method_does_not_pass(sandbox: ProbedSandbox, body: str) -> None:
    code = method(body, "def g(n): return 0 if n == 0 else 1 + g(n - 1)\n")
    assert outcome(sandbox, live_code_bench("[1, 2, 3]", "6"), code) != "passed"


@pytest.mark.more
@pytest.mark.parametrize(
    "code", ["print(gcd(*map(int, input().split())))", "print(Counter(input()))"]
)
def test_a_whole_program_has_its_own_imports_alone(sandbox: ProbedSandbox, code: str) -> None:
    row = {"prompt": "p", "inputs": ["4 6\n"], "outputs": ["2\n"]}
    assert outcome(sandbox, row, code) == "error"


@pytest.mark.more
@pytest.mark.parametrize(
    "test", ["assert f(4400) == 10 ** 4400", f"assert f(6000) == {LONG}", f"assert str(f(6000)) == '{LONG}'"]
)  # fmt: skip
def test_a_test_may_have_a_long_number(sandbox: ProbedSandbox, test: str) -> None:
    row = {"prompt": "p", "tests": [test]}
    assert (
        outcome(sandbox, row, "def f(n):\n    assert str(10 ** n)\n    return 10 ** n\n")
        == "passed"
    )


@examples(100)
@given(st.integers(-(10**9), 10**9), st.integers(0, 9000))
def test_a_whole_number_is_read_as_it_is_written(number: int, zeros: int) -> None:
    assert whole_number(f"{number}{'0' * zeros}") == number * 10**zeros


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@examples(100)
@given(DATA)
def test_a_literal_is_what_it_stands_for(value: Any) -> None:
    assert eval(literal(value)) == value


def test_numbers_that_json_lacks_and_long_ones_are_literals_too() -> None:
    value = [float("inf"), float("-inf"), 10**9000, -(10**9000), (1,), (), {"a": (1, [2])}, {}]
    assert eval(literal(value)) == value
    assert str(eval(literal(float("nan")))) == "nan"


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="a number has 1000001 digits"):
        read_json("1" * 1_000_001)
