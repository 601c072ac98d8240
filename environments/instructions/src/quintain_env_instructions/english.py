"""How the reference implementations of IFEval and IFBench divide English text, without the data
that they download.
"""

from __future__ import annotations

import re

_MARK = re.compile(r"[.?!]+[\"')\]}\u201d\u2019*_]*(?=[\s\[(]|\Z)")
_NEXT_WORD = re.compile(r"\s*[\"'(\[\u201c\u2018*_]*(\w*)")
_BEFORE = re.compile(r"[^\s(\"'\u201c\u2018\[]*\Z")
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof gen col lt sen rep st jr sr vs inc ltd co corp bros p jan feb aug sept oct nov "
    "dec a.m p.m u.s u.k u.n d.c ph.d".split()
)
"""Frequent ones that Punkt knows. Others, such as ``e.g.`` and ``Fig.``, end a sentence for it."""
_BEGINNERS = frozenset(
    "the it he she they we i you this that these there here but and so then his her its their our "
    "my in on at after before when while if as for what why how who where however".split()
)
_NEAR = 40


def reference_sentences(text: str) -> list[str]:
    """Return the sentences of *text* as Punkt divides English, the tokenizer of the reference
    implementation: a mark with a blank behind it ends one, a line end does not.

    Punkt's abbreviations are learned and come with its data. Here the frequent ones are a list, so
    that counts differ where a rare one occurs.
    """
    found = []
    start = 0
    for mark in _MARK.finditer(text):
        if _breaks(text, mark):
            found.append(text[start : mark.end()].strip())
            start = mark.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _breaks(text: str, mark: re.Match[str]) -> bool:
    following = _NEXT_WORD.match(text, mark.end(), mark.end() + _NEAR)
    word = following[1] if following else ""
    if "!" in mark[0] or "?" in mark[0]:
        return True
    small = word[:1].islower()
    if mark[0].startswith(".."):
        return not small
    before = _BEFORE.search(text[max(0, mark.start() - _NEAR) : mark.start()])
    token = before[0].lower() if before else ""
    if small and re.fullmatch(r"-?[\d.,]*\d", token):
        return False
    initial = len(token) == 1 and token.isalpha()
    if initial or token in _ABBREVIATIONS:
        return word.lower() in _BEGINNERS and not small
    return True


_TOKEN_EDGE = re.compile(r"[\s,;:@#$%&?!()\[\]{}<>\"`\u201c\u201d]+|--|\.\.\.")
_CONTRACTION = re.compile(r"(?<=[A-Z])(?=N'T\b|'(?:S|M|D|LL|RE|VE)\b)")
_DIVIDED = {"CANNOT": 2, "GONNA": 2, "GOTTA": 2, "GIMME": 2, "LEMME": 2, "WANNA": 2}


def capital_tokens(text: str) -> int:
    """Count the tokens of *text* that are all in capitals, as the Penn Treebank divides words:
    ``DON'T`` is two, ``COVID-19`` one.
    """
    count = 0
    for piece in _TOKEN_EDGE.split(text):
        for token in _CONTRACTION.split(piece):
            if token.isupper():
                count += _DIVIDED.get(token.strip(".'"), 1)
    return count


def plain_words(text: str) -> list[str]:
    """Return what stands between blanks in *text* without ASCII punctuation, as IFBench counts words
    in most of its checks.
    """
    return text.translate(_NO_PUNCTUATION).split()


PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_NO_PUNCTUATION = str.maketrans("", "", PUNCTUATION)
