"""tools/wrap_docs.py fills long lines of prose and leaves everything else as it is."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from ..tools import load_tool

TOOL = load_tool("wrap_docs")

LONG = " ".join(["word"] * 30)
KEPT = f"""\
---
title: {LONG}
---

# {LONG}

| {LONG} |
|---|
| a |

```text
{LONG}
```

    {LONG}

A short line
and another one.
"""


def rendered(text: str) -> str:
    """The HTML of *text*. Line ends outside code are spaces."""
    parts = re.split(r"(<pre>.*?</pre>)", MarkdownIt("commonmark").render(text), flags=re.S)
    return "".join(part if part[:5] == "<pre>" else re.sub(r"\s+", " ", part) for part in parts)


def test_what_is_no_long_prose_stays() -> None:
    """Front matter, headings, tables, code, and paragraphs whose lines are short."""
    assert TOOL.wrapped(KEPT) == KEPT


def test_long_prose_is_filled() -> None:
    """A paragraph, and an item whose further lines are indented as its text is."""
    line = " ".join(["word"] * 20)
    text = f"{LONG}\n\n1. {LONG}\n   more\n2. short\n"

    rest = " ".join(["word"] * 10)
    item = f"1. {' '.join(['word'] * 19)}\n   {rest} word more\n2. short\n"
    assert TOOL.wrapped(text) == f"{line}\n{rest}\n\n{item}"


def test_what_must_stay_together_does() -> None:
    """A code span, the target of a link, and a word that would begin a list at the start of a
    line: filled at any width the text renders as before.
    """
    text = f"See `a b` [the page](page.md#at), 5 - 3 is 2. # {LONG} - + * 4. `c  d` <b x='1'> | > = y.\n"
    for indent in range(60):
        shifted = f"{'x' * indent} {text}"
        filled = TOOL.wrapped(shifted)
        assert rendered(filled) == rendered(shifted)
        assert TOOL.wrapped(filled) == filled
        assert max(map(len, filled.splitlines())) <= TOOL.WIDTH


@pytest.mark.more
def test_every_page_renders_as_before() -> None:
    """Each page with its paragraphs on one line, as an editor leaves them."""
    for path in TOOL.pages():
        text = path.read_text(encoding="utf-8")
        joined = "".join(
            " ".join(line.strip() for line in block) + "\n"
            if prose and block[0][0] not in " -*1"
            else "".join(block)
            for prose, block in TOOL._blocks(text)
        )
        assert rendered(TOOL.wrapped(joined)) == rendered(joined), path


def test_no_prose_is_too_long() -> None:
    """The pages, CONTRIBUTING.md and the READMEs are what the tool writes."""
    long = [path for path in TOOL.pages() if TOOL.wrapped(text := path.read_text()) != text]

    assert long == [], "run `make format`"
