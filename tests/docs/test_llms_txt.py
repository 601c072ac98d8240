"""llms.txt has the form of llmstxt.org and names every page."""

from __future__ import annotations

import re

from ..tools import load_tool
from .pages import PAGES, ROOT

TOOL = load_tool("llms")
TEXT = (ROOT / "llms.txt").read_text()


def test_it_is_up_to_date() -> None:
    """It is what `python tools/llms.py` would write."""
    assert TOOL.render() == TEXT, "run python tools/llms.py"


def test_its_form() -> None:
    """A title, a summary, lists of links with a description each, to files that exist."""
    head, summary = TEXT.splitlines()[0], TEXT.splitlines()[2]
    links = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\): (.+)$", TEXT, re.M)

    assert head == "# Quintain"
    assert summary[:2] == "> "
    assert all((ROOT / file).exists() for _, file, _ in links)
    assert {p.relative_to(ROOT).as_posix() for p in PAGES} - {"docs/README.md"} <= {
        file for _, file, _ in links
    }
    assert all(title and about for title, _, about in links)
