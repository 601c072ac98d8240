"""The final answer of a reply, and whether it is the reference without asking a judge."""

from __future__ import annotations

import re
import unicodedata

from .prompts import INVISIBLE

_WHY = re.compile(r",?\s+(?:because|since|as shown|which is|and this)\b", re.IGNORECASE)
_MARKED = re.compile(
    r"(?:^|\n)\s*####\s*(.+)|<answer>(.*?)</answer>|(?:final answer|answer)\s*(?:is|:)\s*([^\n]+)",
    re.IGNORECASE | re.DOTALL,
)
_SPELLINGS = {"<wide>", "<narrow>", "<font>", "<compat>", "<noBreak>"}
"""Compatibility forms of Unicode that only write a character another way. Superscripts, subscripts,
fractions and squared units mean something else than the characters that they are made of: 10² is
not 102.
"""
_ARTICLE = re.compile(
    r"\b(?:an?|the)\s+(?=[^\W\d_]{2})(?!(?:and|or|sin|cos|tan|log|exp|mod|plus|minus|major|minor|flat|sharp)\b)",
    re.IGNORECASE,
)
"""An article is followed by a word; the A of *vitamin A*, *A and B*, *a sin x* or *A minor* is
none.
"""
_LEADING = re.compile(r"(?:[\s:;!?`$]|[.,](?!\d)|\*\*+|\*(?=\s))+")
_PAIRS = {'""', "''", "\u201c\u201d", "\u2018\u2019", "«»", "**", "\u201e\u201c"}
_UNIT = re.compile(
    r"(?:[QRYZEPTGMkhdcmµμunpfazyrq]|da)?(?:m|g|s|A|K|W|V|J|N|F|H|T|S|L|l|b|B|C|eV|Hz|Pa|Wh|Gy|Sv|Bq|bit|cal|mol|bar)|"
    r"[mµμunp]?M|[kMGT]|G|a|h"
)
"""Units, some with a prefix, and bare prefixes, whose case decides what they mean: mW and MW, Mb
and MB.
"""
LONGEST = 300
"""Characters of a final answer; a longer one is an explanation."""


def extracted(reply: str) -> str:
    """Return the final answer: the last box or mark, else the whole of a short reply, else its
    short last line; else empty.

    >>> extracted("Six times seven is 42. Answer: 42")
    '42'
    """
    boxed = _last_box(reply)
    marked = [next(filter(None, groups), "") for groups in _MARKED.findall(reply)]
    text = (boxed or (_WHY.split(marked[-1].split("\n")[0])[0] if marked else "") or reply).strip()
    if len(text) > LONGEST or "\n" in text:
        text = text.splitlines()[-1].strip()
    return _bare(text) if len(text) <= LONGEST else ""


def same(answer: str, reference: str) -> bool:
    """Return whether both are equal up to case, blanks, articles and marks at the ends, where none
    of these decides the meaning.

    An answer of blanks alone equals nothing.

    >>> same("The Bridge.", "bridge"), same("", "A"), same(".5", "5"), same("5 MW", "5 mW")
    (True, False, False, False)
    """
    words, expected = _normal(answer).split(), _normal(reference).split()
    if not words or len(words) != len(expected):
        return False
    return all(map(_same_word, words, expected, ["", *words[:-1]]))


def _same_word(word: str, expected: str, before: str) -> bool:
    """Return whether two words are equal, up to case unless both are units that differ by it;
    *before* is the last word.
    """
    if word.casefold() != expected.casefold():
        return False
    counted = word[0].isdigit() or before[-1:].isdigit()
    for one, other in zip(
        re.findall(r"[^\W\d_]+", word), re.findall(r"[^\W\d_]+", expected), strict=False
    ):
        mixed = any(re.search("[a-zµμ][A-Z]", name) for name in (one, other))
        if one != other and (counted or mixed) and _UNIT.fullmatch(one) and _UNIT.fullmatch(other):
            return False
    return True


def _normal(text: str) -> str:
    """Return *text* in one spelling, without articles and marks at its ends, unless nothing else is
    there.
    """
    plain = "".join(map(_spelling, unicodedata.normalize("NFC", INVISIBLE.sub("", text))))
    return _bare(_ARTICLE.sub("", _bare(plain)))


def _spelling(character: str) -> str:
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if tag in _SPELLINGS else character


def _bare(text: str) -> str:
    """Return *text* without marks at its ends, or as it is if there is nothing else."""
    bare = text.strip()
    while bare:
        less = bare[match.end() if (match := _LEADING.match(bare)) else 0 :]
        less = less[: len(less) - _marks_at_end(less)]
        if len(less) > 2 and less[0] + less[-1] in _PAIRS:
            less = less[1:-1]
        if less == bare:
            return bare
        bare = less
    return text.strip()


def _marks_at_end(text: str) -> int:
    """Return the number of characters at the end of *text* that mean nothing.

    A factorial means something, and so do the points of 0.33... and the star of A*.
    """
    last = text[-1:]
    run = len(text) - len(text.rstrip(last)) if last else 0
    before = text[: len(text) - run]
    if last.isspace() or (last and last in ",;:?`$"):
        return run
    if last == ".":
        return run if run == 1 or before[-1:].isalpha() else 0
    if last == "!":
        return run if before[-2:].isalpha() and len(before) > 1 else 0
    return run if last == "*" and run > 1 else 0


def _last_box(text: str) -> str:
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth, begin = 0, start + len("\\boxed{")
    for i in range(begin - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if not depth:
            return text[begin:i]
    return ""
