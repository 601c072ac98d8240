"""Rows of contest data sets in other layouts: each becomes a row that `rows` reads.

Nothing of a row is executed here, and nothing is unpickled.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from quintain.errors import UsageError

from .extract import extract

INFLATED = 1 << 28
"""Bytes of the private cases of one row."""
PYTHON_3 = 3
"""The number of Python 3 among the languages of CodeContests."""
ORDINARY = {"cpu_seconds": 5.0, "memory_mib": 512}
"""The least limits: those of a contest are for C++."""
TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
FRAMES = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}

PRINTED = """
import subprocess, sys
given, output, answer = sys.argv[1:4]
ended = subprocess.run([sys.executable, "generated.py", given, answer, output], capture_output=True, text=True)
print(ended.stdout[-200:], ended.stderr[-200:], file=sys.stderr)
printed = ended.stdout.split()[-1:]
sys.exit(0 if ended.returncode == 0 and printed and printed[0].lower() in ("1", "1.0", "true") else 1)
"""
"""A checker around one of open-r1/codeforces, which takes the expected output before the program's
and prints 1.
"""


class UnsupportedRow(UsageError):
    """A row in a known layout whose task cannot run here; data sets load without it."""


def code_contests(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of CodeContests (Li et al. 2022): public, private and generated tests, solutions
    in several languages.

    Raises:
        UnsupportedRow: the program is to read or write a file.
    """
    if row.get("input_file") or row.get("output_file"):
        raise UnsupportedRow(
            "the program reads or writes a file; only standard input and output are supported"
        )
    cases = [
        case
        for key in ("public_tests", "private_tests", "generated_tests")
        for case in _pairs(row.get(key))
    ]
    solutions = row.get("solutions") or {}
    if isinstance(solutions, Mapping):
        solutions = [
            {"language": language, "solution": text}
            for language, text in zip(
                solutions.get("language", ()), solutions.get("solution", ()), strict=True
            )
        ]
    python = [s["solution"] for s in solutions if s["language"] in (PYTHON_3, "PYTHON3")]
    seconds = row.get("time_limit") or {}
    if isinstance(seconds, Mapping):
        seconds = seconds.get("seconds", 0) + seconds.get("nanos", 0) / 1e9
    return {
        "prompt": row["description"],
        "id": row.get("name", ""),
        "inputs": [given for given, _ in cases],
        "outputs": [expected for _, expected in cases],
        "solution": python[0] if python else "",
        **_limits(seconds, (row.get("memory_limit_bytes") or 0) >> 20),
    }


def codeforces(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of open-r1/codeforces: a statement in parts, official tests, perhaps a checker
    that was generated.

    Raises:
        UnsupportedRow: the task is interactive, or the program is to read a file.
    """
    if row.get("interaction_format"):
        raise UnsupportedRow(
            "the task is interactive, and the row has no interactor: write a row of your own"
        )
    if row.get("input_mode") not in (None, "", "stdio"):
        raise UnsupportedRow(f"input_mode is {row['input_mode']!r}; only 'stdio' is supported")
    tests = [*_pairs(row.get("examples")), *_pairs(row.get("official_tests"))]
    cases = list(dict.fromkeys(tests))
    parts = [row.get("title"), row["description"]]
    parts += [f"{head}\n{row[key]}" for head, key in (("Input", "input_format"), ("Output",
    "output_format"),
                                                      ("Note",
                                                      "note")) if row.get(key)]  # fmt: skip
    checker = row.get("generated_checker")
    return {
        "prompt": "\n\n".join(filter(None, parts)),
        "id": row.get("id", ""),
        "inputs": [given for given, _ in cases],
        "outputs": [expected for _, expected in cases],
        **({"checker": {"checker.py": PRINTED, "generated.py": checker}} if checker else {}),
        **({"level": row["rating"]} if row.get("rating") else {}),
        **_limits(row.get("time_limit") or 0, int(row.get("memory_limit") or 0)),
    }


def prime(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of Prime Intellect's data sets, whose ``verification_info`` has the test cases.

    Raises:
        UsageError: it has no test cases, or of a type that is unknown.
    """
    info = row["verification_info"]
    info = json.loads(info) if isinstance(info, str) else info
    cases = info.get("test_cases") or []
    kinds = {case.get("type", "stdin_stdout") for case in cases}
    if len(kinds) != 1 or not kinds <= {"stdin_stdout", "function_call"}:
        listed = ", ".join(sorted(kinds)) or "none"
        raise UsageError(
            f"the test cases of verification_info are of the types {listed}; expected stdin_stdout "
            f"or function_call"
        )
    language = info.get("language") or "python"
    solution = row.get("gold_standard_solution") or row.get("gold_solution") or ""
    solution = (
        next(iter(extract(solution, language=language).files.values()), "") if solution else ""
    )
    shared = {"id": row.get("problem_id") or row.get("id") or "", "language": language}
    inputs, outputs = [case["input"] for case in cases], [case["output"] for case in cases]
    if kinds == {"stdin_stdout"}:
        return {
            **shared,
            "prompt": _prompt(row),
            "inputs": inputs,
            "outputs": outputs,
            "solution": solution,
        }
    calls = {"fn_name": cases[0]["fn_name"], "inputs": inputs, "outputs": outputs}
    return {
        **shared,
        "question": _prompt(row),
        "input_output": calls,
        "solutions": [solution] if solution else [],
    }


def private_cases(text: str) -> list[Any]:
    """Return the compressed cases of LiveCodeBench: base64 of zlib of a pickle of one text, which
    is JSON.

    The pickle is not loaded: its instructions are read, and any but those that stand for one text
    are refused.

    Raises:
        UsageError: it is anything else.
    """
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text, validate=True), INFLATED)
        if inflater.unconsumed_tail:
            raise UsageError(f"private_test_cases has more than {INFLATED} bytes")
        operations = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(data)]
    except (binascii.Error, zlib.error, ValueError) as e:
        raise UsageError(
            f"private_test_cases is neither JSON nor compressed as in LiveCodeBench: {e}"
        ) from e
    texts = [text for name, text in operations if name in TEXTS and isinstance(text, str)]
    others = sorted({name for name, _ in operations} - TEXTS - FRAMES)
    if len(texts) != 1 or others:
        raise UsageError(
            "private_test_cases is a pickle of more than one text "
            f"({', '.join(others[:3]) or len(texts)}), which is never loaded; convert it to JSON"
        )
    return list(json.loads(texts[0]))


def _prompt(row: Mapping[str, Any]) -> str:
    return str(row.get("prompt") or row.get("problem") or row.get("problem_statement") or "")


def _pairs(tests: Any) -> list[tuple[str, str]]:
    """Return input and output of each test, from a list of both or two lists."""
    if isinstance(tests, Mapping):
        return list(zip(tests.get("input", ()), tests.get("output", ()), strict=True))
    return [(test["input"], test["output"]) for test in tests or ()]


def _limits(seconds: float, mebibytes: int) -> dict[str, float]:
    limits = {"cpu_seconds": float(seconds), "memory_mib": mebibytes}
    return {key: max(least, limits[key]) for key, least in ORDINARY.items()}


LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], dict[str, Any]]], ...] = (
    (("verification_info",), prime),
    (("description", "public_tests"), code_contests),
    (("description", "official_tests"), codeforces),
)
"""The layouts by the keys that tell them."""
