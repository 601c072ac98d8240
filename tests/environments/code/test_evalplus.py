"""Rows of EvalPlus: tasks with rules of their own, and arguments that JSON cannot hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from quintain_env_code import Grader, task_of
from quintain_env_code.contests import UnsupportedRow
from quintain_env_code.evalplus import arguments_of
from quintain_sandbox import ProbedSandbox

from ...plugins.sandbox.service import started


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProbedSandbox]:
    yield from started("bubblewrap", slots=2)


def row(name: str, head: str, body: str, *inputs: list[Any], atol: float = 0) -> dict[str, Any]:
    entry = head.partition("(")[0]
    return {
        "task_id": name,
        "prompt": f'def {head}:\n    """Do it."""\n',
        "entry_point": entry,
        "canonical_solution": f"    return {body}\n",
        "base_input": list(inputs[:1]),
        "plus_input": list(inputs[1:]),
        "atol": atol,
    }


ROOT = row("HumanEval/32", "zero(c)", "-c[0] / c[1] if len(c) == 2 else 1.0", [[-1, 2]],
           [[-6, 11, -6, 1]], atol=1e-4)  # fmt: skip
SHARED = row("Mbpp/2", "shared(a, b)", "tuple(sorted(set(a) & set(b)))", [[1, 2, 8], [8, 1, 30]])
ELSEWHERE = {**SHARED, "task_id": "Own/2"}
BY_NAME = row("Mbpp/9999", "Diff(a, b)", "[x for x in a if x not in b]", [[1, 2, 3], [3]])
AREA = row("Mbpp/581", "area(b, h)", "b * b + 2 * b * h", [4, 5], [3, 4])
DIGITS = row("Mbpp/558", "apart(a, b)", "sum(abs(int(x) - int(y)) for x, y in zip(str(a), str(b)))",
             [1, 12], [23, 56])  # fmt: skip
MATCHED = row("Mbpp/794", "text_starta_endb(t)", "'yes' if t[0] + t[-1] == 'ab' else None",
              ["ab"], ["ba"])  # fmt: skip
PLAIN = row("HumanEval/1", "f(a)", "[a, 2 * a]", [1], [2])
FLOATS = row("HumanEval/2", "f(a)", "a / 3", [1.0], [2.0])

RIGHT = {
    "a root that the reference gives": (ROOT, "-c[0] / c[1] if len(c) == 2 else 1.0", True),
    "another root": (ROOT, "0.5 if len(c) == 2 else 3.0", True),
    "a third root": (ROOT, "0.5 if len(c) == 2 else 2", True),
    "nearly a root": (ROOT, "0.500001 if len(c) == 2 else 3.0", True),
    "no root": (ROOT, "0.5 if len(c) == 2 else 2.5", False),
    "nan": (ROOT, "float('nan')", False),
    "a text": (ROOT, "'0.5'", False),
    "nothing": (ROOT, "None", False),
    "sets in the order of the reference": (SHARED, "tuple(sorted(set(a) & set(b)))", True),
    "sets in another order": (SHARED, "sorted(set(a) & set(b), reverse=True)", True),
    "a set": (SHARED, "set(a) & set(b)", True),
    "a set that lacks one": (SHARED, "[1]", False),
    "a set with one more": (SHARED, "[1, 8, 30]", False),
    "sets by the name of the function": (BY_NAME, "[2, 1]", True),
    "another task with an open order": (ELSEWHERE, "tuple(sorted(set(a) & set(b)))", True),
    "another task in another order": (ELSEWHERE, "(8, 1)", False),
    "the height of a side": (AREA, "b * b + 2 * b * h", True),
    "the height of the whole": (AREA, "round(b * b + 2 * b * ((b / 2) ** 2 + h * h) ** 0.5)", True),
    "the base forgotten": (AREA, "2 * b * h", False),
    "digits as they stand": (DIGITS, "0 if a == 1 else 6", True),
    "digits filled with zeros": (DIGITS, "2 if a == 1 else 6", True),
    "other digits": (DIGITS, "2 if a == 1 else 7", False),
    "a match as the reference says it": (MATCHED, "'yes' if t == 'ab' else None", True),
    "a match in other words": (MATCHED, "'Found' if t == 'ab' else None", True),
    "a match as a boolean": (MATCHED, "t == 'ab'", True),
    "a match everywhere": (MATCHED, "'yes'", False),
    "no match as a word": (MATCHED, "'yes' if t == 'ab' else 'no'", False),
    "no match as a boolean, wrong": (MATCHED, "t != 'ab'", False),
    "equal lists": (PLAIN, "[a, a + a]", True),
    "a tuple for a list": (PLAIN, "(a, 2 * a)", False),
    "another order without a rule": (PLAIN, "[2 * a, a]", False),
    "a float within the tolerance": (FLOATS, "a / 3 + 1e-8", True),
    "a float beyond it": (FLOATS, "a / 3 + 1e-5", False),
}


@pytest.mark.keeps("another root", "no root", "sets in another order", "a match everywhere",
                   "the height of the whole", "digits filled with zeros")  # fmt: skip
@pytest.mark.parametrize("given, body, passes", RIGHT.values(), ids=RIGHT)
def test_a_result_is_judged_as_by_evalplus(
    sandbox: ProbedSandbox, given: dict[str, Any], body: str, passes: bool
) -> None:
    task = task_of(given, "row")
    head = given["prompt"].splitlines()[0]
    code = {"solution.py": f"{head}\n    return {body}\n"}
    grade = asyncio.run(Grader(sandbox).grade(task, code))
    assert (grade.outcome == "passed") == passes


@pytest.mark.parametrize(
    "name, head", [("Mbpp/164", "f(a)"), ("Mbpp/295", "f(a)"), ("Mbpp/1", "sum_div(a)")]
)
def test_a_task_that_accepts_what_is_no_solution_is_refused_by_name(name: str, head: str) -> None:
    with pytest.raises(UnsupportedRow, match=f"EvalPlus accepts .* in the task {name}"):
        task_of(row(name, head, "0", [1]), "row")


@pytest.mark.parametrize(
    "name, given, arguments",
    [
        ("HumanEval/2", [[1, 2]], [[1, 2]]),
        ("Mbpp/3", [[1, [2]]], [[1, [2]]]),
        ("Mbpp/2", [[1, 2], [3]], [(1, 2), (3,)]),
        ("Mbpp/63", [[[1, 2], [3]]], [[(1, 2), (3,)]]),
        ("Mbpp/75", [[[1, 2]], 3], [[(1, 2)], 3]),
        ("Mbpp/722", [{"a": [1.0, 2]}, 3, 4], [{"a": (1.0, 2)}, 3, 4]),
        ("Mbpp/106", [[1], [2, 3]], [[1], (2, 3)]),
        ("Mbpp/250", [[1, 2], 2], [(1, 2), 2]),
        ("Mbpp/307", [["a", []], 1, [2]], [("a", []), 1, [2]]),
        ("Mbpp/278", [[1, [2, 3]]], [(1, (2, 3))]),
        ("Mbpp/259", [[[1, 2]], [[3, 4]]], [((1, 2),), ((3, 4),)]),
        ("Mbpp/615", [[[1, [2]]]], [((1, (2,)),)]),
        ("Mbpp/115", [[[1], [], {}]], [[{1}, {}, {}]]),
        ("Mbpp/124", ["3", "4j"], [3.0, 4j]),
        ("Mbpp/252", ["(3+4j)"], [3 + 4j]),
    ],
)
def test_arguments_are_what_the_function_takes(
    name: str, given: list[Any], arguments: list[Any]
) -> None:
    assert arguments_of(name, given) == arguments
