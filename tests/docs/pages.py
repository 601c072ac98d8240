"""The pages of the documentation as the tests read them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

MEMBER_PAGES = tuple(
    sorted((*ROOT.glob("plugins/*/README.md"), *ROOT.glob("environments/*/README.md")))
)
OTHER_PAGES = tuple(
    ROOT / name for name in ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
)

_FENCE = re.compile(
    r"^(?P<indent> "
    r"*)(?P<ticks>```+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=ticks)",
    re.M | re.S,
)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FILE = re.compile(r"# file: (\S+)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; *line* is that of its first line of text, from 1."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block is the text of, named by its first line; empty where there is
        none.
        """
        found = _FILE.match(self.text)
        return found[1] if found else ""

    @property
    def commands(self) -> list[str]:
        """The commands of a ``bash`` block, without comments; a backslash joins lines."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]

    @property
    def talks(self) -> list[tuple[str, str]]:
        """Command and output, for each ``$`` of a ``console`` block."""
        said = re.split(r"^\$ ", self.text, flags=re.M)
        return [
            (head.strip(), tail.strip())
            for head, _, tail in (part.partition("\n") for part in said[1:])
        ]


@dataclass(frozen=True, kw_only=True)
class Page:
    """One Markdown file."""

    path: Path

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        """The fenced blocks, in order."""
        return [
            Block(
                language=m["language"],
                text=re.sub(f"^{m['indent']}", "", m["text"], flags=re.M),
                line=self.text.count("\n", 0, m.start("text")) + 1,
            )
            for m in _FENCE.finditer(self.text)
        ]

    @property
    def spans(self) -> list[str]:
        """Code within the text, outside blocks."""
        return re.findall(r"`([^`\n]+)`", _FENCE.sub("", self.text))

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures, outside blocks."""
        return _LINK.findall(_FENCE.sub("", self.text))

    @property
    def anchors(self) -> set[str]:
        """What ``#...`` can name: the headings, as GitHub spells them."""
        titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", self.text), re.M)
        return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def page(name: str) -> Page:
    """The page at *name*, from the root of the repository."""
    return Page(path=ROOT / name)
