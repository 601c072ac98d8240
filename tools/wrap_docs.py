"""Wrap the prose of the pages at 100 columns, so that a changed sentence is a short diff.

Only paragraphs and list items with a line that is too long are filled again. Code, tables,
headings, links, HTML and front matter stay as they are, so a page renders as before. Running it
twice changes nothing more.

python tools/wrap_docs.py [--check] [PAGE ...]
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100

_FRONT_MATTER = re.compile(r"---\n.*?^---\n", re.M | re.S)
_FENCE = re.compile(r" *(```+(?=[^`]*$)|~~~+)")
_ITEM = re.compile(r"( *)(?:[-*+]|\d+[.)]) +(?=\S)")
_OTHER_BLOCK = re.compile(r" *(?:\||#{1,6} |<[A-Za-z/!]|>|!!!|\[[^\]]+\]: |(?:[-*_=] *){3,}$)")
"""The begin of what is no prose: a table, heading, HTML, quote, admonition, link target or rule."""

_UNBREAKABLE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)|\]\([^)]*\)|<[^<>]*>")
_BLOCK_MARK = re.compile(r" (?=(?:[-*+>|=]|\d+[.)]|#+|[-*_=]{3,})(?: |$)|```|~~~)")
"""The space before a word that would begin a list or another block at the start of a line."""


def pages() -> list[Path]:
    """The files that are wrapped."""
    paths = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md"]
    for pattern in ("docs/**/*.md", "plugins/*/README.md", "environments/*/README.md"):
        paths += sorted(ROOT.glob(pattern))
    return paths


def wrapped(text: str) -> str:
    """Return *text* with no line of prose beyond `WIDTH` columns.

    A word, a code span or the target of a link is never broken, so a line may stay longer.
    """
    front = _FRONT_MATTER.match(text)
    head, body = (front[0], text[front.end() :]) if front else ("", text)
    return head + "".join(
        _filled(block) if prose else "".join(block) for prose, block in _blocks(body)
    )


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and list item of *text* as one line, with the number of its first
    line.
    """
    front = _FRONT_MATTER.match(text)
    number = 1 + (front[0].count("\n") if front else 0)
    for is_prose, lines in _blocks(text[front.end() :] if front else text):
        if is_prose:
            yield number, " ".join(line.strip() for line in lines)
        number += len(lines)


def _blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the lines of *text* in blocks, each with whether it is prose that may be filled."""
    lines = text.splitlines(keepends=True)
    content = 0  # column of the text of the latest list item
    index = 0
    while index < len(lines):
        start, line = index, lines[index]
        index += 1
        if fence := _FENCE.match(line):
            while index < len(lines) and not re.match(rf" *{fence[1]}", lines[index]):
                index += 1
            index += 1
            yield False, lines[start:index]
        elif not line.strip() or _OTHER_BLOCK.match(line):
            yield False, [line]
        else:
            item = _ITEM.match(line)
            indent = len(line) - len(line.lstrip())
            content = item.end() if item else min(content, indent)
            while index < len(lines) and _continues(lines[index]):
                index += 1
            yield bool(item) or indent < content + 4, lines[start:index]


def _continues(line: str) -> bool:
    return bool(line.strip()) and not any(p.match(line) for p in (_ITEM, _FENCE, _OTHER_BLOCK))


def _filled(lines: list[str]) -> str:
    """Return the lines of a paragraph or list item, filled again if one is too long."""
    if max(map(len, lines)) <= WIDTH + 1 or any(re.search(r"(  |\\)\n$", line) for line in lines):
        return "".join(lines)
    item = _ITEM.match(lines[0])
    start = item[0] if item else lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    words = " ".join(line.strip() for line in lines)[len(start.lstrip()) :]
    words = _UNBREAKABLE.sub(lambda match: match[0].replace(" ", "\0"), words)
    words = _BLOCK_MARK.sub("\0", words)
    filled = textwrap.fill(
        words,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ") + "\n"


def main(words: list[str]) -> int:
    """Wrap the pages, or with ``--check`` name those with a line that is too long."""
    check = "--check" in words
    named = [Path(word).resolve() for word in words if word != "--check"]
    changed = []
    for path in named or pages():
        text = path.read_text(encoding="utf-8")
        if wrapped(text) != text:
            changed.append(path)
            if not check:
                path.write_text(wrapped(text), encoding="utf-8")
    for path in changed:
        print(path.relative_to(ROOT), "has lines that are too long" if check else "wrapped")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
