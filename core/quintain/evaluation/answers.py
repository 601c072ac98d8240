"""The answer of a reply: equal answers vote together in cons@k, others overlap by words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .spelling import respelled

_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)\s{0,3}\{)|\\.|(?P<open>\{)|(?P<close>\})"
    r"|(?P<tag><\s?answer\s?>)"
    r"|(?P<hashes>^[ \t]{0,8}####(?!#))"
    # Every run has a limit, so that no text makes the search quadratic.
    r"|(?P<words>\banswer[ \t]{0,3}[*_]{0,3}[ \t]{0,3}(?:\bis\b[ \t]{0,3}:?|:|=)"
    r"|^[ \t#*_]{0,8}(?:the[ ])?(?:final[ ])?answer[ \t*_]{0,6}(?=\n))",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_REMARK = re.compile(
    r"(?:indeed |clearly |therefore |thus |also |now |then |again )*"
    r"(?:correct|right|wrong|incorrect|verified|confirmed|boxed|shown|given|found|obtained|"
    r"consistent|reasonable|in the box|above|below|as (?:above|below|shown|follows))\b",
    re.IGNORECASE,
)
"""Words behind "the answer is" that say something about an answer that stands elsewhere."""
_SUPPOSED = re.compile(
    r"\b(?:if|whether|suppose|supposing|assume|assuming|unless|until|why|how)(?: that)?(?: the| my| our)?"
    r"(?: final| right| correct)? $",
    re.IGNORECASE,
)
"""Words before "answer is" that make it no statement."""
_HEADING = re.compile(r"[\s*_]{0,9}(?:the )?(?:final )?answer[\s*_:]{0,9}", re.IGNORECASE)
_LINE = re.compile(r"\s*([^\n]{0,2000})")
_CLOSING_TAG = re.compile(r"<\s?/\s?answer", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")

Mark = Literal["box", "tag", "hashes", "words", "line"]


@dataclass(frozen=True, kw_only=True)
class Statement:
    r"""What a reply states as its answer.

    Attributes:
        mark: ``box`` for ``\boxed{}``, ``tag`` for ``<answer>``, ``hashes`` for a line after
            ``####``, ``words`` for what follows "the answer is" or "Answer:", ``line`` for a last
            line without a mark.
        text: as it stands there; of ``hashes``, ``words`` and ``line`` one line. Empty where the
            last mark is a box that does not end, or the reply is empty.
        rest: the reply from the mark on, or all of it.
    """

    mark: Mark
    text: str
    rest: str


@dataclass
class _Found:
    mark: Mark
    start: int
    end: int
    inside: _Found | None
    closed: int = -1  # where the content of a box ends


def stated_answer(reply: str) -> Statement:
    r"""Return what a reply states as its answer: what its last mark marks, else its last line.

    A mark within a box is a part of the box. "The answer is correct", and remarks like it, mark
    nothing. The time is linear in the length of the reply.

    >>> stated_answer(r"\boxed{5}. No: the answer is 6").text
    '6'
    """
    text = _without_tokens(reply)
    for found in reversed(_marks(text)):
        if found.inside is not None and found.inside.closed >= 0 and found.mark != "box":
            continue
        marked = _marked(text, found)
        if marked is not None:
            return Statement(mark=found.mark, text=marked, rest=text[found.end :])
    lines = text.splitlines()
    return Statement(mark="line", text=lines[-1].strip() if lines else "", rest=text)


def final_answer(reply: str) -> str | None:
    r"""Return the answer that a reply ends in, for voting; ``None`` where it states none.

    It is the content of the last ``\boxed{}``, ``<answer>`` tag or line after ``####``; else the
    last number after "the answer is", or of the last line; else these words. Case, spaces,
    thousands separators and trailing zeros do not count.
    """
    stated = stated_answer(reply)
    text = respelled(stated.text)
    if stated.mark in ("words", "line") and (numbers := _NUMBER.findall(text)):
        return _normal(numbers[-1])
    return _normal(text)


def word_f1(words: Iterable[str], expected: Iterable[str]) -> float:
    """Compare two texts by the harmonic mean of precision and recall of their words, counted with
    repetition; 0 where both are empty.
    """
    reply_words, wanted = Counter(words), Counter(expected)
    return 2 * (reply_words & wanted).total() / max((reply_words + wanted).total(), 1)


def _marks(text: str) -> list[_Found]:
    """Return the marks of *text* in their order, in one pass."""
    marks: list[_Found] = []
    braces: list[_Found | None] = []  # the box that each open brace begins
    boxes: list[_Found] = []  # those that are open
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "open":
            braces.append(None)
        elif kind == "close":
            box = braces.pop() if braces else None
            if box is not None:
                box.closed = match.start()
                boxes.pop()
        elif kind in ("box", "tag", "hashes", "words"):
            mark: Mark = kind  # type: ignore[assignment]  # one of the names above
            found = _Found(mark, match.start(), match.end(), boxes[-1] if boxes else None)
            marks.append(found)
            if kind == "box":
                braces.append(found)
                boxes.append(found)
    return marks


def _marked(text: str, found: _Found) -> str | None:
    """Return what a mark marks; ``None`` if that is no answer, so that an earlier mark counts."""
    if found.mark == "box":
        return text[found.end : found.closed].strip() if found.closed >= 0 else ""
    if found.mark == "tag":
        end = _CLOSING_TAG.search(text, found.end)
        return text[found.end : end.start() if end else len(text)].strip()
    line = _LINE.match(text, found.end)
    if line is None or not line[1]:
        return None
    if found.mark == "hashes" and _HEADING.fullmatch(line[1]):
        line = _LINE.match(text, line.end())
    marked = _CLOSING_TAG.split(line[1], maxsplit=1)[0].strip() if line else ""
    bare = marked.lstrip("*_ ")
    if found.mark == "words":
        before = text[max(0, found.start - 40) : found.start]
        if _REMARK.match(bare) or _SUPPOSED.search(before):
            return None
    return marked if bare else None


def _without_tokens(reply: str) -> str:
    """Return *reply* without blanks and special tokens, such as ``<|im_end|>``, at its end."""
    end = len(reply)
    while True:
        while end and reply[end - 1].isspace():
            end -= 1
        length = 0
        if reply.endswith(("|>", "</s>", "<eos>", "<end_of_turn>"), 0, end):
            start = reply.rfind("<", max(0, end - 32), end)
            length = end - start if start >= 0 else 0
        if not length:
            return reply[:end]
        end -= length


def _normal(answer: str) -> str | None:
    text = " ".join(answer.split()).strip("$ .*").casefold()
    if re.fullmatch(r"-?\d[\d,]*(\.\d+)?", text):
        text = text.replace(",", "")
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text or None
