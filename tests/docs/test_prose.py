"""The pages that a newcomer reads keep to the rule for prose (`tools/prose.py`)."""

from __future__ import annotations

import pytest

from ..tools import load_tool

TOOL = load_tool("prose")


@pytest.mark.parametrize("page", TOOL.PAGES)
def test_page_keeps_to_the_rule(page: str) -> None:
    """No semicolons, and no paragraph or sentence that is too long for one idea."""
    text = (TOOL.ROOT / page).read_text(encoding="utf-8")

    assert list(TOOL.faults(text)) == []


@pytest.mark.parametrize(
    "text, faults",
    [
        ("One; two.", [(1, "semicolon")]),
        ("- One.\n- Two; three.", [(2, "semicolon")]),
        ("One.\n\nTwo\nthree;\nfour.", [(3, "semicolon")]),
        ("---\na: b; c\n---\n\nOne; two.", [(5, "semicolon")]),
        ("Write `a; b`.", []),
        ("```\na; b\n```\n\n| a; b |\n|---|\n", []),
        ("One two. " * 46, [(1, "92 words")]),
        ("One two. " * 45, []),
        ("one " * 41, [(1, "sentence of 41 words")]),
        ("one " * 40, []),
    ],
)
def test_faults_are_found_in_prose_alone(text: str, faults: list[tuple[int, str]]) -> None:
    """Each has the line where its paragraph begins. Code, tables and front matter are no prose."""
    found = list(TOOL.faults(text))

    assert [line for line, _ in found] == [line for line, _ in faults]
    assert all(part in fault for (_, fault), (_, part) in zip(found, faults, strict=True))
