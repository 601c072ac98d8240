"""The runner of reported cases, and the cases of which no other test has the input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .agents import HELD, ROOT, verdicts
from .written import WRITTEN

TOOL = {"name": "run", "description": "", "parameters": {"type": "object", "properties": {}}}


def case(name: str, text: str, expected: Any) -> dict[str, Any]:
    given = json.dumps({"text": text, "tools": [TOOL]})
    call = "tool_format('hermes').parse(text, tools=...)"
    return {
        "id": f"agents-{name}", "input": given, "call": call, "expected": json.dumps(expected),
    }  # fmt: skip


def test_a_case_is_right_wrong_or_not_run() -> None:
    text = '<tool_call>{"name": "run", "arguments": {}}</tool_call>'
    cases = [
        case("parse-1", text, [["run", {}]]),
        case("parse-2", text, ["fault"]),
        case("template-none", "", []),
        case("none", "", []),
    ]
    found = {c["id"]: verdict for c, verdict, _ in verdicts(cases, Path("no-folder"))}
    assert found == {
        "agents-parse-1": "right",
        "agents-parse-2": "wrong",
        "agents-template-none": "not run",
        "agents-none": "not run",
    }


def test_tests_that_hold_cases_are_there() -> None:
    for node in {node for nodes in HELD.values() for node in nodes}:
        file, _, name = node.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


@pytest.mark.more
@pytest.mark.parametrize("name", WRITTEN)
def test_a_reported_case_is_right(name: str) -> None:
    WRITTEN[name]()
