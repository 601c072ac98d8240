"""The final answer of a reply, and whether it is the reference without asking a judge."""

from __future__ import annotations

import re

from quintain.evaluation import (
    Statement,
    respelled,
    same_but_for_case,
    stated_answer,
    without_end,
)

from .prompts import INVISIBLE

_WHY = re.compile(r",?\s+(?:because|since|as shown|which is|and this)\b", re.IGNORECASE)
_DENIED = re.compile(
    r"[\s$.,;:!)\-\u2013\u2014]*(?:(?:no|wait|hmm|oh|oops|sorry|actually|but)[\s,.!]+){0,3}"
    r"(?:that|this|it|the (?:answer|box|result))(?:'s| is| was)\s+(?:actually |clearly )?"
    r"(?:wrong|incorrect|mistaken|false|not (?:right|correct)|a mistake|an error)\b",
    re.IGNORECASE,
)
"""Words behind a box that take it back without another answer."""
_ARTICLE = re.compile(
    r"\b(?:an?|the)\s+(?=[^\W\d_]{2})(?!(?:and|or|sin|cos|tan|log|exp|mod|plus|minus|major|minor|flat|sharp)\b)",
    re.IGNORECASE,
)
"""An article is followed by a word; the A of *vitamin A*, *A and B*, *a sin x* or *A minor* is
none.
"""
_LEADING = re.compile(r"(?:[\s:;!?`$]|[.,](?!\d)|\*\*+|\*(?=\s))+")
_PAIRS = {'""', "''", "\u201c\u201d", "\u2018\u2019", "«»", "**", "\u201e\u201c"}
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
MOST_MARKS = 30
"""Pairs of quotes and marks around an answer that are taken off."""
LONGEST = 300
"""Characters of a final answer; a longer one is an explanation."""


def extracted(reply: str) -> str:
    """Return the final answer: the last box or mark, else the whole of a short reply, else its
    short last line; else empty.

    >>> extracted("Six times seven is 42. Answer: 42")
    '42'
    """
    stated = stated_answer(reply)
    if stated.mark == "box" and _DENIED.match(_behind_box(stated)[:LONGEST]):
        return ""
    text = stated.text
    if stated.mark == "line":
        text = reply.strip()
    elif stated.mark == "words":
        text = _WHY.split(text[: 4 * LONGEST])[0]  # a reason begins with any number of blanks
    text = text or reply.strip()
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
    return bool(words) and same_but_for_case(" ".join(words), " ".join(expected))


def _normal(text: str) -> str:
    """Return *text* in one spelling, without articles and marks at its ends, unless nothing else is
    there.
    """
    plain = respelled(INVISIBLE.sub("", text)).strip()
    if _THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", "")
    return _bare(_ARTICLE.sub("", _bare(plain)))


def _bare(text: str) -> str:
    """Return *text* without marks at its ends, or as it is if there is nothing else."""
    bare = text.strip()
    for _ in range(MOST_MARKS):  # each round reads the text once
        less = bare[match.end() if (match := _LEADING.match(bare)) else 0 :]
        less = without_end(less).rstrip("`$")
        less = less.rstrip("*") if less.endswith("**") else less  # one star is that of A*
        if len(less) > 2 and less[0] + less[-1] in _PAIRS:
            less = less[1:-1]
        if not less:
            return text.strip()
        if less == bare:
            return bare
        bare = less
    return bare


def _behind_box(stated: Statement) -> str:
    """Return what follows the box that *stated* has its text of."""
    return stated.rest.lstrip()[len(stated.text) :].lstrip().removeprefix("}")
