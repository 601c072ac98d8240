"""Rows of data sets as tasks: MBPP, HumanEval and EvalPlus, APPS and LiveCodeBench, contests, and a
format of our own.

Rows are read as JSON and never unpickled; their code runs in sandboxes only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quintain.errors import UsageError, did_you_mean

from .contests import LAYOUTS, UnsupportedRow, private_cases
from .evalplus import judged
from .literals import literal, read_json
from .names import signatures, solution_names
from .tasks import LANGUAGES, MODULE, Case, CodeTask

BLOCK = "Put the code into one ```python block."
PROGRAM = (
    "Write a program that reads standard input and prints the answer. Put it into one "
    "```{language} block."
)
LEVELS = {
    "introductory": 1.0, "interview": 2.0, "competition": 3.0, "easy": 1.0, "medium": 2.0,
    "hard": 3.0,
}  # fmt: skip
FORMATS = (
    'MBPP {"text", "test_list"}, HumanEval {"prompt", "entry_point", "test"}, EvalPlus '
    '{"base_input"}, APPS {"question", "input_output"}, LiveCodeBench {"question_content", '
    '"public_test_cases"}, CodeContests {"description", "public_tests"}, codeforces '
    '{"description", "official_tests"}, {"verification_info"}, {"prompt", "tests"}, {"prompt", '
    '"inputs", "outputs"} or {"prompt", "suite"}'
)

_SHARED = {
    "prompt", "solution", "weights", "cpu_seconds", "memory_mib", "level", "difficulty", "id",
    "task_id", "question_id",
    "source", "split", "metadata",
}  # fmt: skip
_OWN_KEYS = {
    "tests": _SHARED | {"tests", "setup", "prefix", "in_place"},
    "inputs": _SHARED
    | {"inputs", "outputs", "language", "argv", "file", "tolerance", "checker", "interactor"},
    "suite": _SHARED | {"suite", "files"},
}
"""Keys of rows of one's own, by the key that tells the kind of task."""

HEADER = "".join(
    [
        *(f"from {module} import *\n" for module in (
            "string re datetime collections heapq bisect copy math random statistics itertools "
            "functools operator io sys json builtins typing"
        ).split()),
        "import bisect, collections, copy, datetime, fractions, functools, heapq, io, itertools\n",
        "import json, math, operator, random, re, statistics, string, sys, time\n",
        "sys.setrecursionlimit(50000)\n",
        "getattr(sys, 'set_int_max_str_digits', int)(50000)\n",
    ]
)  # fmt: skip
"""What stands before a function or method of LiveCodeBench, APPS and Prime Intellect: the names that
LeetCode has without an import, and the limits, as in the grader of LiveCodeBench
(``testing_util.py``, ``compute_code_generation_metrics.py``). That of APPS has a part of them.
"""

LISTED = """
def _listed(value, levels):
    if levels and isinstance(value, (list, tuple)):
        return [_listed(x, levels - 1) for x in value]
    return value
"""
"""How APPS and LiveCodeBench compare: expected values are JSON, which has no tuples, so a tuple is
as good as the list.
"""


def task_of(
    row: Any, where: str, show_tests: int | None = None, *, written: bool = True
) -> CodeTask:
    """Return the task of a *row*.

    Args:
        where: file and line, or data set and index, for messages.
        show_tests: tests in the prompt; ``None`` follows the data set: one for MBPP, whose texts do
            not say what a function is called or takes, and none for the others.
        written: whether the user wrote the row, so that a key which no format of one's own has is
            an error. Rows of the hub have columns of their own.

    Raises:
        UnsupportedRow: its task cannot run here.
        UsageError: the row has no known format, or a part of it is not as its format says.
    """
    if not isinstance(row, Mapping):
        raise UsageError(f"{where} is no JSON object; expected {FORMATS}")
    try:
        for keys, convert in LAYOUTS:
            if all(row.get(key) is not None for key in keys):
                row, written = convert(row), False
        for keys, reader in _READERS:
            if all(row.get(key) is not None for key in keys):
                if written and keys[-1] in ("tests", "outputs", "suite"):
                    _refuse_unknown_keys(row, _OWN_KEYS[keys[1]])
                return reader(row, where, show_tests)
    except UnsupportedRow as e:
        raise UnsupportedRow(f"{where}: {e}") from e
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        error_text = str(e) if isinstance(e, UsageError) else f"{type(e).__name__}: {e}"
        raise UsageError(f"{where}: {error_text}") from e
    absent = {key for keys, _ in (*_READERS, *LAYOUTS) for key in keys if row.get(key) is None}
    meant = [f"{near!r} for {key!r}" for key in map(str, row) if key not in _SHARED
             for near in difflib.get_close_matches(key, absent, n=1)]  # fmt: skip
    hint = f"; did you mean {', '.join(meant)}?" if meant else ""
    raise UsageError(
        f"{where} has the keys {', '.join(map(str, row))[:200]}{hint or f'; expected {FORMATS}'}"
    )


def _refuse_unknown_keys(row: Mapping[str, Any], known: set[str]) -> None:
    for key in row:
        if key not in known and not key.startswith("_"):
            near = did_you_mean(key, known) or f"; known: {', '.join(sorted(known))}."
            raise UsageError(
                f"unknown key {key!r}{near} Keys of your own begin with _ or go into `metadata`"
            )


def _mbpp(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    tests = tuple(_text(test) for test in row["test_list"])
    reference = _text(row.get("code") or "")
    imports = "\n".join(row.get("test_imports") or ())
    setup = f"{imports}\n{_text(row.get('test_setup_code') or '')}".strip()
    shown = tests[: 1 if show is None else show]
    names, _ = solution_names(setup, tests, reference)
    paragraphs = [_text(row.get("text") or row.get("prompt") or "").strip()]
    if heads := signatures(names, reference):
        paragraphs.append("Define " + ", ".join(f"`{head}`" for head in heads) + ".")
    if shown:
        paragraphs.append(
            "Your code must pass tests such as\n\n```python\n" + "\n".join(shown) + "\n```"
        )
    hidden = row.get("challenge_test_list") or ()
    return CodeTask(
        prompt="\n\n".join([*paragraphs, BLOCK]),
        tests=(*tests, *map(_text, hidden)),
        setup=setup,
        solution={MODULE: reference} if reference else {},
        source=f"mbpp {row.get('task_id', '')}".strip(),
    )


def _human_eval(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    head, entry = _text(row["prompt"]), row["entry_point"]
    test = f"{_text(row['test'])}\n\ncheck({entry})"
    return _completed(row, head, entry, (test,), "")


def _eval_plus(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    head = _text(row["prompt"])
    setup, test = judged(row, head + _text(row["canonical_solution"]))
    return _completed(row, head, row["entry_point"], (test,), setup)


def _completed(
    row: Mapping[str, Any], head: str, entry: str, tests: tuple[str, ...], setup: str
) -> CodeTask:
    """Return a task whose prompt is the head of a function; what precedes the function stands
    before every solution.
    """
    body = _text(row.get("canonical_solution") or "")
    before = re.split(rf"^(?=def {re.escape(entry)}\b)", head, maxsplit=1, flags=re.M)[0]
    return CodeTask(
        prompt=f"Complete the function `{entry}`.\n\n```python\n{head.rstrip()}\n```\n\n{BLOCK}",
        tests=tests,
        # Tests may call functions of the head, such as HumanEval's `poly`. They get them from here,
        # so that a solution cannot replace them.
        setup=f"{before}\n{setup}",
        prefix=before,
        solution={MODULE: head + body} if body else {},
        source=str(row.get("task_id", "")),
    )


def _apps(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    data = _json(row["input_output"])
    solutions = _json(row.get("solutions") or "[]")
    reference = _text(solutions[0]) if solutions else ""
    head = _text(row["question"])
    starter = _text(row.get("starter_code") or "")
    if data.get("fn_name"):
        cases = list(zip(data["inputs"], data["outputs"], strict=True))
        return _called(row, head, starter, data["fn_name"], cases, reference, show, levels=2)
    lines: list[Any] = [tuple("\n".join(x) if isinstance(x, list) else x for x in pair)
             for pair in zip(data["inputs"], data["outputs"], strict=True)]  # fmt: skip
    return _program(row, head, lines, reference, show)


def _live_code_bench(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    private = row.get("private_test_cases") or "[]"
    compressed = isinstance(private, str) and not private.lstrip().startswith("[")
    cases = [
        *_json(row["public_test_cases"]),
        *(private_cases(private) if compressed else _json(private)),
    ]
    head, starter = _text(row["question_content"]), _text(row.get("starter_code") or "")
    if cases and cases[0].get("testtype") == "functional":
        name = _json(row.get("metadata") or "{}")["func_name"]
        calls = [
            ([read_json(x) for x in c["input"].split("\n")], read_json(c["output"])) for c in cases
        ]
        return _called(row, head, starter, name, calls, "", show, levels=1)
    return _program(row, head, [(c["input"], c["output"]) for c in cases], "", show)


def _called(
    row: Mapping[str, Any],
    head: str,
    starter: str,
    name: str,
    cases: Sequence[Any],
    reference: str,
    show: int | None,
    *,
    levels: int,
) -> CodeTask:
    """Return a function, or a method of ``Solution``, with arguments and results as data.

    *levels*: how deep a tuple counts as a list: 1 in LiveCodeBench, 2 in APPS, which also wraps
    some results in a list of one and others not, so that both count.
    """
    method = "class Solution" in (starter or reference)
    target = f"Solution().{name}" if method else name
    calls = [
        (f"{target}(*{literal(args)})", _accepted(out, wrapped=levels > 1)) for args, out in cases
    ]
    tests = tuple(f"assert _listed({call}, {levels}) {accepted}" for call, accepted in calls)
    paragraphs = [
        head,
        f"```python\n{starter.rstrip()}\n```" if starter.strip() else f"Define `{name}`.",
    ]
    if show:
        shown = "\n".join(f"assert {call} {accepted}" for call, accepted in calls[:show])
        paragraphs.append(f"Your code must pass tests such as\n\n```python\n{shown}\n```")
    return CodeTask(
        prompt="\n\n".join([*paragraphs, BLOCK]),
        tests=tests,
        setup=LISTED,
        prefix=HEADER,
        solution={MODULE: reference} if reference else {},
        level=_level(row),
        source=_source(row),
    )


def _accepted(out: Any, *, wrapped: bool) -> str:
    """Write the condition on a result: *out*, or also what it holds where it may be *wrapped*."""
    if wrapped and isinstance(out, list) and len(out) == 1:
        return f"in ({literal(out)}, {literal(out[0])})"
    return f"== {literal(out)}"


def _program(
    row: Mapping[str, Any],
    head: str,
    cases: Sequence[tuple[str, Any]],
    reference: str,
    show: int | None,
) -> CodeTask:
    """Return a program. The output of a case is a text, or a list of those that are accepted."""
    language = str(row.get("language") or "python")
    if language not in LANGUAGES and not row.get("argv"):
        raise UsageError(
            f"the language {language!r} needs `argv`; known without: {', '.join(LANGUAGES)}"
        )
    known = LANGUAGES.get(language)
    file = str(row.get("file") or (known.file if known else MODULE))
    read = [_case(given, expected) for given, expected in cases]
    shown = [
        f"Input:\n```\n{case.stdin.rstrip()}\n```\nOutput:\n```\n{case.stdout.rstrip()}\n```"
        for case in read[: show or 0]
    ]
    return CodeTask(
        prompt="\n\n".join([head, *shown, PROGRAM.format(language=language)]),
        kind="stdin",
        cases=tuple(read),
        checker=_judge(row, "checker"),
        interactor=_judge(row, "interactor"),
        solution={file: reference} if reference else {},
        files=(file,),
        language=language,
        argv=tuple(row.get("argv") or (known.argv if known else ())),
        level=_level(row),
        source=_source(row),
        **_tolerance(row),
        **_settings(row),
    )


def _case(given: Any, expected: Any) -> Case:
    first, *others = expected if isinstance(expected, (list, tuple)) and expected else [expected]
    return Case(stdin=_text(given), stdout=_text(first), also=tuple(map(_text, others)))


def _judge(row: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return the files of a checker or interactor, the main one first; empty if there is none. A
    text is one file, in Python unless it includes headers as C++ does.
    """
    given = row.get(key) or {}
    if isinstance(given, str):
        return {f"{key}.{'cpp' if '#include' in given else 'py'}": _text(given)}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{key} is a {type(given).__name__}; expected source, or source by file name, the main "
            f"one first"
        )
    return {str(name): _text(source) for name, source in given.items()}


def _tolerance(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``tolerance``: one number for the absolute and the relative error, or each by name."""
    given = row.get("tolerance") or {}
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        given = {"absolute": given, "relative": given}
    if not isinstance(given, Mapping) or not given.keys() <= {"absolute", "relative"}:
        raise UsageError(
            f'tolerance is {str(given)[:80]!r}; expected a number, or {{"absolute": 1e-6, '
            f'"relative": 1e-6}}'
        )
    return {f"{kind}_error": float(error) for kind, error in given.items()}


def _own(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    """Return the task of a row ``{"prompt", "tests"}``: a function."""
    reference, tests = _text(row.get("solution") or ""), _texts(row, "tests")
    paragraphs = [_text(row["prompt"])]
    in_place = row.get("in_place") or False
    if not isinstance(in_place, bool):
        raise UsageError(f"in_place is {in_place!r}; expected true or false")
    if show:
        paragraphs.append(
            "Your code must pass tests such as\n\n```python\n" + "\n".join(tests[:show]) + "\n```"
        )
    return CodeTask(
        prompt="\n\n".join([*paragraphs, BLOCK]),
        tests=tests,
        setup=_text(row.get("setup") or ""),
        prefix=_text(row.get("prefix") or ""),
        in_place=in_place,
        solution={MODULE: reference} if reference else {},
        level=_level(row),
        source=_source(row),
        **_settings(row),
    )


def _own_program(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    """Return the task of a row ``{"prompt", "inputs", "outputs"}``: a program."""
    inputs, outputs = _texts(row, "inputs"), row["outputs"]
    if not isinstance(outputs, (list, tuple)):
        raise UsageError(f"outputs is a {type(outputs).__name__}; expected a list of texts")
    if len(inputs) != len(outputs):
        raise UsageError(
            f"inputs has {len(inputs)} texts and outputs {len(outputs)}; expected one output for "
            f"each input"
        )
    cases = list(zip(inputs, outputs, strict=True))
    if row.get("argv"):
        _texts(row, "argv")
    return _program(row, _text(row["prompt"]), cases, _text(row.get("solution") or ""), show)


def _own_suite(row: Mapping[str, Any], where: str, show: int | None) -> CodeTask:
    """Return the task of a row ``{"prompt", "suite", "files"}``: modules and a pytest suite by file
    name.
    """
    files = _texts(row, "files") if row.get("files") else (MODULE,)
    if not isinstance(row["suite"], Mapping):
        raise UsageError(f"suite is a {type(row['suite']).__name__}; expected source by file name")
    request = BLOCK
    if len(files) > 1:
        listed = ", ".join(f"```python {name}" for name in files)
        request = (
            f"Write each file into a block of its own, with its name behind the language: {listed}."
        )
    shown = [
        f"```python\n{text.rstrip()}\n```" for text in list(row["suite"].values())[: show or 0]
    ]
    if shown:
        shown.insert(0, "Your code must pass")
    solution = row.get("solution") or {}
    return CodeTask(
        prompt="\n\n".join([_text(row["prompt"]), *shown, request]),
        kind="suite",
        suite=dict(row["suite"]),
        files=files,
        solution={MODULE: solution} if isinstance(solution, str) else dict(solution),
        level=_level(row),
        source=_source(row),
        **_settings(row),
    )


_READERS: tuple[
    tuple[tuple[str, ...], Callable[[Mapping[str, Any], str, int | None], CodeTask]], ...
] = (
    (("entry_point", "base_input"), _eval_plus),
    (("entry_point", "test", "prompt"), _human_eval),
    (("test_list",), _mbpp),
    (("question_content", "public_test_cases"), _live_code_bench),
    (("question", "input_output"), _apps),
    (("prompt", "suite"), _own_suite),
    (("prompt", "inputs", "outputs"), _own_program),
    (("prompt", "tests"), _own),
)
"""Readers by the keys that tell their format; the first that fits reads the row."""


def _settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits and weights that a row sets.

    Raises:
        UsageError: one is no number, or weights are no list.
    """
    known: dict[str, Callable[[Any], Any]] = {
        "cpu_seconds": float,
        "memory_mib": int,
        "weights": lambda weights: tuple(map(float, weights)),
    }
    settings: dict[str, Any] = {}
    for key, convert in known.items():
        value = row.get(key)
        if not value:  # an empty field of CSV; and 0 s of CPU would judge every solution wrong
            continue
        try:
            if key == "weights" and isinstance(value, str):
                raise TypeError("a text is no list")
            settings[key] = convert(value)
        except (TypeError, ValueError) as e:
            raise UsageError(
                f"{key} is {str(row[key])[:80]!r}; expected a number, or for weights a list of them"
            ) from e
    return settings


def _level(row: Mapping[str, Any]) -> float | None:
    level = row.get("level", row.get("difficulty"))
    if "level" in row and isinstance(level, str) and level.lower() not in LEVELS:
        raise UsageError(f"level is {level!r}, which is no number{did_you_mean(level, LEVELS)}")
    return float(level) if isinstance(level, (int, float)) else LEVELS.get(str(level).lower())


def _source(row: Mapping[str, Any]) -> str:
    return str(
        row.get("source") or row.get("id") or row.get("task_id") or row.get("question_id") or ""
    )


def _json(value: Any) -> Any:
    return read_json(value) if isinstance(value, str) else value


def _texts(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the list of texts in *row*; one text would else be taken for a list of its letters."""
    if not isinstance(row[key], (list, tuple)):
        raise UsageError(f"{key} is a {type(row[key]).__name__}; expected a list of texts")
    return tuple(map(_text, row[key]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{str(value)[:80]!r} is a {type(value).__name__}; expected text")
    return value.replace("\r\n", "\n")
