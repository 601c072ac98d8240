"""Rows of EvalPlus (Liu et al. 2023, arXiv:2305.01210): arguments, and how results are judged.

Results are compared with those of the reference. Some tasks have several right results, which
EvalPlus judges by rules of their own. A task is known by its id, such as ``HumanEval/32``, and in
MBPP by the name of its function, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .contests import UnsupportedRow
from .literals import literal

COMPARE = """
def _same(a, b, atol):
    if isinstance(b, float) and isinstance(a, (int, float)):
        if not math.isfinite(b):
            return a == b or (a != a and b != b)
        return a == b or abs(a - b) <= (atol or 1e-6) + 1e-7 * abs(b)
    if isinstance(b, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(_same(x, y, atol) for x, y in zip(a, b, strict=True))
    if isinstance(b, dict) and isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k], atol) for k in b)
    return a == b
"""
"""How EvalPlus compares: finite floats within a tolerance, all else as equal values, and nan as
equal to itself.
"""
EQUAL = "_same(result, expected, atol)"
ROOT = "abs(sum(c * math.pow(result, n) for n, c in enumerate(arguments[0]))) <= atol"
SETS = "set(result) == set(expected)"
MATCH = (
    "result == (expected is not None) if isinstance(result, bool) "
    "else (result is not None) == (expected is not None)"
)
HEIGHT = (
    f"{EQUAL} or abs(result - round(arguments[0] ** 2 + 2 * arguments[0] "
    "* math.sqrt((arguments[0] / 2) ** 2 + arguments[1] ** 2))) <= atol"
)
DIGITS = (
    f"{EQUAL} or result == sum(abs(int(a) - int(b)) for a, b in zip("
    "*(str(n).zfill(max(len(str(m)) for m in arguments)) for n in arguments)))"
)
RULES: Mapping[str, str] = {
    "HumanEval/32": ROOT,
    "Mbpp/2": SETS,
    "similar_elements": SETS,
    "Mbpp/7": SETS,
    "find_char_long": SETS,
    "Mbpp/111": SETS,
    "common_in_nested_lists": SETS,
    "Mbpp/140": SETS,
    "extract_singly": SETS,
    "Mbpp/232": SETS,
    "larg_nnum": SETS,
    "Mbpp/249": SETS,
    "intersection_array": SETS,
    "Mbpp/579": SETS,
    "find_dissimilar": SETS,
    "Mbpp/769": SETS,
    "Diff": SETS,
    "Mbpp/581": HEIGHT,
    "surface_Area": HEIGHT,
    "Mbpp/558": DIGITS,
    "digit_distance_nums": DIGITS,
    "check_str": MATCH,
    "text_match_three": MATCH,
    "text_starta_endb": MATCH,
}
"""Conditions on *arguments*, *result*, the *expected* result of the reference, and *atol*: a root of
the polynomial, equal sets, whether there is a match; the height of a pyramid may be that of a side
or of the whole; the shorter of two numbers may be filled with zeros.
"""
REFUSED: Mapping[str, str] = {
    "Mbpp/164": "any result",
    "are_equivalent": "any result",
    "Mbpp/295": "the result 0 for all arguments",
    "sum_div": "the result 0 for all arguments",
}
"""Tasks whose rule a policy would learn in place of the task."""

EVERY = tuple(range(16))
"""Arguments of any function, and depths of any list."""
TUPLES: tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...] = (
    (EVERY, (0,), "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 "
     "744 809"),
    (EVERY, (1,), "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780"),
    ((0,), (1,), "75 413 444 722 753"),
    ((1,), (0,), "106 750"),
    ((0,), (0,), "250 307 405 446 617 720 763 808"),
    (EVERY, (0, 1), "259 278 401 445"),
    (EVERY, EVERY, "580 615 791"),
)  # fmt: skip
"""Lists of JSON that stand for tuples, in MBPP: which arguments, at which depths, and the tasks."""
OTHERS: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "Mbpp/115": lambda arguments: [[set(item) or {} for item in arguments[0]]],
    "Mbpp/124": lambda arguments: [float(arguments[0]), complex(arguments[1])],
    "Mbpp/252": lambda arguments: [complex(arguments[0])],
}
"""Arguments that JSON cannot hold, by task."""


def judged(row: Mapping[str, Any], reference: str) -> tuple[str, str]:
    """Return the set-up and the test of a row: the reference computes what is expected.

    Raises:
        UnsupportedRow: EvalPlus accepts what is no solution of the task.
    """
    name, entry = str(row.get("task_id", "")), row["entry_point"]
    # EvalPlus knows tasks of MBPP by the names of their functions
    known = (name, entry) if name.startswith("Mbpp/") else (name,)
    for key in known:
        if key in REFUSED:
            raise UnsupportedRow(f"EvalPlus accepts {REFUSED[key]} in the task {name}")
    rule = next((RULES[key] for key in known if key in RULES), EQUAL)
    setup = (
        f"import copy, math\n{COMPARE}\n"
        f"def _right(arguments, result, expected, atol):\n    return {rule}\n"
        f"_reference = {{}}\nexec({reference!r}, _reference)\n"
    )
    inputs = [*row["base_input"], *(row.get("plus_input") or ())]
    read = [arguments_of(name, arguments) for arguments in inputs]
    call = f"{entry}(*copy.deepcopy(_args)), _reference[{entry!r}](*copy.deepcopy(_args))"
    atol = row.get("atol") or 0
    return setup, f"for _args in {literal(read)}:\n    assert _right(_args, {call}, {atol!r})"


def arguments_of(name: str, arguments: list[Any]) -> list[Any]:
    """Return the *arguments* of the task *name* as its function takes them."""
    if name in OTHERS:
        return OTHERS[name](arguments)
    task_set, _, number = name.partition("/")
    for which, depths, tasks in TUPLES if task_set == "Mbpp" else ():
        if number in tasks.split():
            return [
                _with_tuples(value, depths, 0) if at in which else value
                for at, value in enumerate(arguments)
            ]
    return arguments


def _with_tuples(value: Any, depths: tuple[int, ...], depth: int) -> Any:
    """Return *value* with tuples in place of its lists at the *depths*."""
    if isinstance(value, dict):
        return {key: _with_tuples(item, depths, depth + 1) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [_with_tuples(item, depths, depth + 1) for item in value]
    return tuple(items) if depth in depths else items
