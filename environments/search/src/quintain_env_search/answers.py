"""From a reply to an answer and its citations, and comparison as SQuAD does it."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from quintain.evaluation import word_f1

OPEN, CLOSE = "<answer>", "</answer>"
_CITATION = re.compile(r"\[([^\[\]\n]{1,200})\]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class CitedAnswer:
    """What a reply answers: the *text* between the tags, and the ids in brackets behind them.

    *plain*: nothing stands before, between or behind them but blanks.
    """

    text: str
    citations: tuple[str, ...] = ()
    plain: bool = False


def read_answer(reply: str) -> CitedAnswer | None:
    """Return the answer of a *reply* ``<answer>TEXT</answer> [ID] [ID]``; None unless it has each
    tag exactly once, in order.

    Several answers are none, so that a list of guesses cannot be right.
    """
    before, opening, rest = reply.partition(OPEN)
    text, closing, after = rest.partition(CLOSE)
    if (
        not opening
        or not closing
        or any(tag in part for tag in (OPEN, CLOSE) for part in (before, text, after))
    ):
        return None
    ids = tuple(dict.fromkeys(" ".join(c.split()) for c in _CITATION.findall(after)))
    return CitedAnswer(
        text.strip(), ids, plain=not before.strip() and not _CITATION.sub("", after).strip()
    )


def normalized(text: str) -> str:
    """Return *text* in lower case without punctuation, articles and repeated blanks (Rajpurkar et
    al. 2016, arXiv:1606.05250).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, gold: str) -> bool:
    """Return whether both are the same and not empty once normalized."""
    return bool(normalized(answer)) and normalized(answer) == normalized(gold)


def f1(answer: str, gold: str) -> float:
    """Compare the words of *answer* with those of *gold*, both normalized (`word_f1`)."""
    return word_f1(normalized(answer).split(), normalized(gold).split())


def contains(passage: str, answer: str) -> bool:
    """Return whether the words of *answer* stand in *passage* one after the other, both
    normalized.
    """
    return bool(normalized(answer)) and f" {normalized(answer)} " in f" {normalized(passage)} "
