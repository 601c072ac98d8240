"""Find what the rule for pages forbids: semicolons, and paragraphs of more than one idea.

The rule (CONTRIBUTING.md): one idea a paragraph, short sentences, "you". A machine sees two of its
symptoms: a semicolon joins two sentences, and a paragraph of over 90 words holds more than one
idea. Code, tables, headings and HTML are no prose.

python tools/prose.py [PAGE ...]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from wrap_docs import ROOT, prose

PAGES = (
    "README.md",
    "docs/start.md",
    "docs/write-an-environment.md",
    "docs/write-a-reward.md",
    "docs/agents.md",
    "docs/judged-rewards.md",
    "docs/schedules.md",
    "docs/code.md",
    "docs/story.md",
)
"""The pages that a newcomer reads, which the rule is enforced for."""

LONGEST = 90
"""Words of a paragraph or list item; a quarter of an A4 page."""

LONGEST_SENTENCE = 40
"""Words of a sentence."""

_CODE = re.compile(r"(`+).+?\1")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+")


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each paragraph that breaks the rule, and what is wrong with it."""
    for line, paragraph in prose(text):
        plain = _CODE.sub("x", paragraph)
        if ";" in plain:
            yield line, f"a semicolon, write two sentences: {_around(plain, ';')}"
        if (words := len(plain.split())) > LONGEST:
            yield line, f"{words} words, more than one idea: {plain[:60]}..."
        for sentence in _SENTENCE_END.split(plain):
            if (words := len(sentence.split())) > LONGEST_SENTENCE:
                yield line, f"a sentence of {words} words: {sentence[:60]}..."


def _around(text: str, mark: str) -> str:
    place = text.index(mark)
    return text[max(0, place - 30) : place + 30]


def main(names: list[str]) -> int:
    """Print the faults of the pages *names*, by default `PAGES`; return whether there are any."""
    found = 0
    for name in names or PAGES:
        for line, fault in faults((ROOT / name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {fault}")
            found += 1
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
