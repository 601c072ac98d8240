"""One spelling of texts, and which of their differences decide nothing."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SPELLINGS = {"<wide>", "<narrow>", "<font>", "<compat>", "<noBreak>"}
"""Compatibility forms of Unicode that only write a character another way. Superscripts, subscripts,
fractions and squared units mean something else than the characters that they are made of: 10² is
not 102.
"""
_MARKS = {
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"), "-"),
    **dict.fromkeys(map(ord, "\u2018\u2019\u02bc"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d"), '"'),
    **dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff")),
    ord("\u066b"): ".",
    ord("\u066c"): ",",
}
"""Dashes and the minus, quotes, characters that nobody sees, and Arabic separators of numbers."""
_END = ".,;:!?\u3002\u3001\u0964\u061f\u060c"
"""Marks that end a sentence or a clause."""
_FACTOR = re.compile(r"[\d)\]}]$|(?:^|[\W\d_])[^\W\d_]$")
"""What has a factorial: a number, a bracket, or a single letter."""
_NAME = re.compile(r"[^\W\d_]+(?:['.][^\W\d_]+)*")
"""Letters, also as in *don't* and *p.m*."""
WORD = 4
"""Letters of a name that is longer than those of functions, such as sin and log."""
_ELEMENTS = (
    "A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[bsy]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|"
    "L[airuv]|M[cdgnot]|N[abdehiop]?|O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abcehilms]|U|V|"
    "W|Xe|Yb?|Z[nr]"
)
_CHEMICAL = re.compile(rf"(?:{_ELEMENTS})+")
"""Symbols of elements one after the other."""
_PREFIXED = re.compile("[a-z\u00b5\u03bc][A-Z]")
_UNIT = re.compile(
    "(?:[QRYZEPTGMkhdcm\u00b5\u03bcunpfazyrq]|da)?"
    "(?:m|g|s|A|K|W|V|J|N|F|H|T|S|L|l|b|B|C|eV|Hz|Pa|Wh|Gy|Sv|Bq|bit|cal|mol|bar)|"
    "[m\u00b5\u03bcunp]?M|[kMGT]|G|a|h"
)
"""Units, some with a prefix, and bare prefixes, whose case decides what they mean: mW and MW, Mb
and MB.
"""
CHOICES = "ABCDEFGHIJ"
"""Letters that name a choice, in either case."""


def respelled(text: str) -> str:
    """Return *text* in one spelling: NFC, forms of width and font as plain characters, decimal
    digits of any script as 0 to 9, dashes and the minus as ``-``, straight quotes, plain spaces,
    nothing invisible.
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFC", text.translate(_MARKS))
    return "".join(map(_plain, composed)).translate(_MARKS)


def without_end(text: str) -> str:
    """Return *text* without the marks that end a sentence or a clause.

    An exclamation mark that may be a factorial stays, and so do the points of 0.33...

    >>> without_end("Oslo!! "), without_end("5!"), without_end("0.33...")
    ('Oslo', '5!', '0.33...')
    """
    end = len(text)
    while end:
        last = text[end - 1]
        start = end - 1  # of the run of this mark
        while start and text[start - 1] == last:
            start -= 1
        before = text[max(0, start - 2) : start]
        digits_go_on = last == "." and end - start > 1 and not before[-1:].isalpha()
        factorial = last == "!" and _FACTOR.search(before)
        if digits_go_on or factorial or not (last.isspace() or last in _END):
            break
        end = start
    return text[:end]


def same_but_for_case(one: str, other: str) -> bool:
    """Return whether two texts are equal up to case, where the case does not decide the meaning.

    It does between formulas of chemistry (Co, CO), units (mW, MW), variables (X and x, but not the
    choices B and b) and names of functions (O(n), o(n)). A single letter beside a longer word is
    no variable, as in Malcolm X.

    >>> same_but_for_case("Oslo", "OSLO"), same_but_for_case("Hf", "HF")
    (True, False)
    """
    if one == other:
        return True
    if one.casefold() != other.casefold():
        return False
    has_word = any(len(name) >= WORD for name in _NAME.findall(one))
    before = ""
    for word, changed in zip(one.split(), other.split(), strict=True):
        counted = word[0].isdigit() or before[-1:].isdigit()
        for found, another in zip(_NAME.finditer(word), _NAME.finditer(changed), strict=False):
            called = word[found.end() :].startswith("(")
            variable = not has_word and (called or found[0].upper() not in CHOICES)
            if found[0] != another[0] and _differ_by_case(
                found[0], another[0], counted=counted, variable=variable
            ):
                return False
        before = word
    return True


def _differ_by_case(one: str, other: str, *, counted: bool, variable: bool) -> bool:
    """Return whether two names that differ by case alone are two things.

    Args:
        counted: whether a number stands before them, as before a unit.
        variable: whether they are variables if they have one letter.
    """
    mixed = any(_PREFIXED.search(name) for name in (one, other))
    if (counted or mixed) and _UNIT.fullmatch(one) and _UNIT.fullmatch(other):
        return True
    if len(one) == 1:
        return variable
    return bool(_CHEMICAL.fullmatch(one) and _CHEMICAL.fullmatch(other))


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    if character.isspace():
        return "\n" if character in "\n\r\u2028\u2029" else " "
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if tag in _SPELLINGS else character
