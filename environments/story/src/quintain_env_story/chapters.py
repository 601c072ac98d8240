"""Splits the text of a book into chapters, whatever its headings look like.

Headings are found by kind (Markdown, "Chapter 7", Roman numbers, numbers, lines in capitals), and
the first kind that gives at least two chapters of some length is taken. Tables of contents and
title pages are no chapters. No line is lost: front matter and chapters together are the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_WORDS = 40
"""A heading with fewer words under it is an entry of a table of contents, a part or an
illustration.
"""

PIECE_WORDS = 2000
"""Words of a piece of a book without any heading."""

_NUMBER = (
    r"(?:\d{1,3}|[IVXLC]{1,8}|[ivxlc]{1,8}|(?:(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)[- ]?)?"
    r"(?:one|two|three|four|five|six|seven|eight|nine|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)"
    r"|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|the "
    r"(?:last|first))"
)
_TITLE = r"(?:\s*[.:\u2014\u2013-]?\s*\S.{0,80})?"


def _named(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:the )?(?:{words})\.?\s+{_NUMBER}\b{_TITLE}", re.I)


_ROMAN = r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"

KINDS: dict[str, re.Pattern[str]] = {
    "h1": re.compile(r"#\s+\S.{0,150}"),
    "h2": re.compile(r"##\s+\S.{0,150}"),
    "h3": re.compile(r"###\s+\S.{0,150}"),
    "chapter": _named("chapter|chap"),
    "letter": _named("letter|stave|canto|scene|section|episode|day|night"),
    "roman": re.compile(rf"{_ROMAN}\.?(?:\s*[\u2014\u2013-]?\s+[A-Z\u201c\u2018\"'].{{0,80}})?"),
    "number": re.compile(r"\d{1,3}(?:\.?|[.:]?\s+[A-Z\u201c\u2018\"'].{0,80})"),
    "part": _named("part|book|act|volume"),
    "capitals": re.compile(r"(?=.{0,80}$)(?=.*[A-Z]{3})[^a-z]*"),
}
"""Patterns of whole lines, in the order in which they are tried."""

_BESIDE = re.compile(r"(?:prologue|epilogue|afterword|conclusion|interlude)\b.{0,60}", re.I)
"""Headings that count with any kind."""

_BODY_START = re.compile(r"^\s*\*{3}\s*START OF .*\*{3}\s*$", re.I | re.M)
_BODY_END = re.compile(
    r"^\s*\*{3}\s*END OF .*\*{3}\s*$|^End of (?:the )?Project Gutenberg.*$", re.I | re.M
)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter: its *index* from 1, its heading on one line, its *text* without the heading."""

    index: int
    title: str
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())


@dataclass(frozen=True, kw_only=True)
class Split:
    """A book in chapters.

    Attributes:
        front: the lines before the first chapter.
        chapters: from 1 on.
        kind: of the headings; ``pieces`` where there are none.
    """

    front: str
    chapters: tuple[Chapter, ...]
    kind: str


def split_chapters(text: str, *, min_words: int = MIN_WORDS) -> Split:
    """Return the chapters of *text*; a text without headings is cut at paragraphs into pieces of
    about `PIECE_WORDS`.
    """
    lines = clean(text).split("\n")
    for kind, pattern in KINDS.items():
        starts = _chapter_starts(lines, kind, pattern, min_words)
        if len(starts) > 1:
            return _split_at(lines, starts, kind)
    return _split_at(lines, _pieces(lines), "pieces")


def clean(text: str) -> str:
    """Return *text* with plain line breaks, and without the licence that Project Gutenberg puts
    around it.
    """
    text = (
        text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    )
    start = _BODY_START.search(text)
    text = text[start.end() :] if start else text
    end = _BODY_END.search(text)
    text = text[: end.start()] if end else text
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def _chapter_starts(
    lines: Sequence[str], kind: str, pattern: re.Pattern[str], min_words: int
) -> list[int]:
    """Return the numbers of the lines where chapters of one kind begin."""
    headings = [i for i, line in enumerate(lines) if _is_heading(lines, i, pattern)]
    if kind in ("roman", "number") and not _counts_up([_number(lines[i]) for i in headings]):
        return []
    if not headings:
        return []
    beside = (
        [i for i in range(len(lines)) if _is_heading(lines, i, _BESIDE)] if kind != "part" else []
    )
    starts = sorted({*headings, *beside})
    labels = [re.sub(r"\W+", " ", lines[i]).casefold().strip() for i in starts]
    kept: list[int] = []
    dropped = False
    for position, (start, label) in enumerate(zip(starts, labels, strict=True)):
        end = starts[position + 1] if position + 1 < len(starts) else len(lines)
        short = sum(len(line.split()) for line in lines[start + 1 : end]) < min_words
        # The last entry of a table of contents has all that follows the table under it.
        again = dropped and label in labels[position + 1 :]
        if short or again:
            dropped = True
            continue
        dropped = False
        kept.append(start)
    return kept


def _is_heading(lines: Sequence[str], i: int, pattern: re.Pattern[str]) -> bool:
    """Return whether line *i* stands after a blank line, matches as a whole, and no entry of a list
    follows it at once.
    """
    line = lines[i].strip()
    if not line or (i and lines[i - 1].strip()) or not pattern.fullmatch(line):
        return False
    following = lines[i + 1].strip() if i + 1 < len(lines) else ""
    return not (following and pattern.fullmatch(following))


def _number(line: str) -> int:
    """Return the number at the start of a heading of the kinds ``roman`` and ``number``."""
    word = re.match(r"[IVXLC]+|\d+", line.strip())
    assert word is not None
    if word[0].isdigit():
        return int(word[0])
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}[letter] for letter in word[0]]
    return sum(v if v >= max(values[i:]) else -v for i, v in enumerate(values))


def _counts_up(numbers: Sequence[int]) -> bool:
    """Return whether most numbers are one more than the one before, or start again at 1."""
    steps = [b == a + 1 or b == 1 for a, b in pairwise(numbers)]
    return bool(steps) and sum(steps) >= 0.8 * len(steps)


def _pieces(lines: Sequence[str]) -> list[int]:
    """Return the numbers of the lines where pieces of about `PIECE_WORDS` words start, at
    paragraphs.
    """
    starts, words = [0], 0
    total = sum(len(line.split()) for line in lines)
    for i, line in enumerate(lines):
        if words >= PIECE_WORDS and not line.strip() and total >= PIECE_WORDS // 2:
            starts.append(i)
            words = 0
        count = len(line.split())
        words, total = words + count, total - count
    return starts


def _split_at(lines: Sequence[str], starts: Sequence[int], kind: str) -> Split:
    chapters = []
    for index, (start, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True), 1):
        if kind == "pieces":
            title, body = f"Part {index}", lines[start:end]
        else:
            title, body = lines[start].strip().lstrip("# "), lines[start + 1 : end]
        chapters.append(Chapter(index=index, title=title, text="\n".join(body).strip("\n")))
    return Split(
        front="\n".join(lines[: starts[0]]).strip("\n"), chapters=tuple(chapters), kind=kind
    )
