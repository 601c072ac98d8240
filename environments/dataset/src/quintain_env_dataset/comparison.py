"""Whether a reply states the answer of a row, by the kind of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any
from unicodedata import normalize

from quintain.errors import InfrastructureError, RewardFault, UsageError
from quintain.evaluation import (
    CHOICES,
    Statement,
    respelled,
    same_but_for_case,
    without_end,
)

from .dates import date_key
from .kinds import COMMA, ORDERS, is_accepted, json_value, kind_of, reference_of
from .quantities import Amount, has_unit, quantities, whole_quantity
from .sequences import number_sequence
from .spelling import LONGEST, plain

SECONDS = 5.0
"""For one comparison of formulas, in a process of its own."""
_WHY = re.compile(
    r"[,;]? (?:because|since|as shown|which is|where|and this|(?:and |but )?not|rather than|instead of) "
)
_SENTENCE = re.compile(r"(?<=[^\W\d_.][^\W_.][.!?]) (?=[^\W\d_])")
_ASIDE = re.compile(r"\([^()]{0,200}\)")
_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|than|except|without|instead of)|n't)[ \W]{0,3}"
    r"(?:equal to |be |exactly )?[^\w]{0,3}$",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\b(?:or|either|versus|vs)\b", re.IGNORECASE)
_RANGE = re.compile(r"\W{0,3}(?:and|to|through|until)\W{0,3}", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:the|an?) (?=\w{2})", re.IGNORECASE)
_LETTER = re.compile(
    rf"(?:option |choice |answer )?[(\[]?([{CHOICES}{CHOICES.lower()}])[)\].:]{{0,2}}",
    re.IGNORECASE,
)
_WITH_TEXT = re.compile(
    rf"(?:[Oo]ption |[Cc]hoice )?(?:[(\[]([{CHOICES}{CHOICES.lower()}])[)\]][.:]?|([{CHOICES}])[).:]) (.+)"
)
_ANOTHER = re.compile(
    rf"(?:^|(?<=\W))(?:[{CHOICES}](?=[).:]|$| (?:or|and)\b)|\([{CHOICES}{CHOICES.lower()}]\)|[B-HJ](?=\W|$))"
)
_BULLET = re.compile(r"^[-*+\u2022] ")
_FENCE = re.compile(r"```[a-zA-Z0-9]{0,12}[ \t]*\n?")


async def states(stated: Statement, answer: Any, kind: str) -> bool:
    """Return whether *stated* is the answer of a row.

    Args:
        kind: as `kind_of` gives it.

    Raises:
        RewardFault: a formula needs ``quintain-env-dataset[math]``.
        InfrastructureError: the process that compares formulas died.
    """
    reference = reference_of(answer)
    name = kind.partition(",")[0]
    if name == "accepted" and is_accepted(reference):
        for accepted in reference:
            if await states(stated, accepted, kind_of(accepted, kind)):
                return True
        return _same_json(stated, reference)
    if not stated.text:
        return False
    if name in ("json", "accepted"):
        return _same_json(stated, reference)
    text = reference if isinstance(reference, str) else _written(reference)
    if name == "exact":
        expected, *given = (normalize("NFC", t.strip()) for t in (text, stated.text, stated.rest))
        return expected in given
    if name == "number":
        return _same_number(stated, text, COMMA in kind)
    if name == "choice":
        return _same_choice(stated, text)
    if name == "date":
        order = next((order for order in ORDERS if order in kind), "")
        wanted = date_key(without_end(plain(text)), order)
        return any(date_key(given, order) == wanted for given in _candidates(stated))
    if name == "sequence":
        comma = COMMA in kind
        items = number_sequence(without_end(plain(text)), decimal_comma=comma)
        return any(
            number_sequence(given, decimal_comma=comma) == items for given in _candidates(stated)
        )
    if name == "formula":
        return await _same_formula(stated, text)
    return _same_words(stated, text)


def needs_math() -> bool:
    """Return whether what compares formulas is missing."""
    return any(find_spec(name) is None for name in ("quintain_rewards", "math_verify"))


def _written(reference: Any) -> str:
    return str(reference).lower() if isinstance(reference, bool) else str(reference)


def _candidates(stated: Statement) -> Iterator[str]:
    """Yield the text that a mark has, without marks at its end; where words mark it, also without
    the reason or the sentence that follows.
    """
    if len(stated.text) > LONGEST:
        return
    text = plain(_without_bullet(stated))
    yield without_end(text) or text
    if stated.mark in ("words", "hashes"):
        for cut in (_WHY, _SENTENCE):
            first = cut.split(text, maxsplit=1)[0]
            if first != text:
                shorter = plain(first)
                yield without_end(shorter) or shorter


def _without_bullet(stated: Statement) -> str:
    return _BULLET.sub("", stated.text, count=1) if stated.mark == "line" else stated.text


def _same_number(stated: Statement, reference: str, comma: bool) -> bool:
    bare = without_end(plain(reference))
    wanted = whole_quantity(bare, decimal_comma=comma)
    if wanted is None:
        comma = True
        wanted = whole_quantity(bare, decimal_comma=True)
    if wanted is None:
        return _same_words(stated, reference)
    given = _given_number(stated, comma)
    if given is None:
        return False
    value, unit = wanted
    if given.value == value and (not unit or has_unit(given, unit)):
        return True
    bare_share = unit == "%" and not given.before and not given.behind.strip(" .,;:!")
    return bare_share and given.value * 100 == value


def _given_number(stated: Statement, comma: bool) -> Amount | None:
    """Return the number that a reply states: all of a box or a tag; the only number behind other
    marks; the last one of a last line, unless the line denies it or leaves a choice.
    """
    if stated.mark in ("box", "tag"):
        text = without_end(plain(stated.text[:LONGEST]))
        name, equals, value = text.rpartition("=")
        text = value.strip() if equals and name.strip() else text
        if whole_quantity(text, decimal_comma=comma) is None:
            return None
        return next(quantities(text, decimal_comma=comma), None)
    # a number stands at the end of a last line, and at the beginning of what a mark marks
    text = _without_bullet(stated)
    text = plain(text[-LONGEST:] if stated.mark == "line" else text)
    found: list[Amount]
    if stated.mark == "line":
        found = list(quantities(text, decimal_comma=comma))
        if not found or _digits_behind(text, found[-1]):
            return None
        if len(found) > 1 and _undecided(text[found[-2].end : found[-1].start]):
            return None
    else:
        text = _ASIDE.sub("", _WHY.split(text, maxsplit=1)[0]) or text
        text = _SENTENCE.split(text, maxsplit=1)[0].rpartition("=")[2]
        found = list(quantities(text, decimal_comma=comma))
        if len({quantity.value for quantity in found}) != 1 or _digits_behind(text, found[-1]):
            return None
    last = found[-1]
    return None if _DENIED.search(text[max(0, last.start - 40) : last.start]) else last


def _digits_behind(text: str, quantity: Amount) -> bool:
    """Return whether a date, a range or another form with digits follows that is no number."""
    return bool(re.search(r"(?<![\w^])\d", text[quantity.end :]))


def _undecided(between: str) -> bool:
    return bool(_EITHER.search(between) or _RANGE.fullmatch(between))


def _same_choice(stated: Statement, reference: str) -> bool:
    letter = plain(reference).strip("().").upper()
    return any(_choice(text) == letter for text in _candidates(stated))


def _choice(text: str) -> str:
    """Return the letter that *text* chooses, with or without the text of the choice; empty where it
    names none, or several.
    """
    alone = _LETTER.fullmatch(text)
    if alone is not None:
        return alone[1].upper()
    named = _WITH_TEXT.fullmatch(text)
    if named is None or _ANOTHER.search(named[3]):
        return ""
    return (named[1] or named[2]).upper()


def _same_words(stated: Statement, reference: str) -> bool:
    wanted = _words(reference)
    texts = list(_candidates(stated))
    if len(reference) > LONGEST or "\n" in reference.strip():
        texts = [stated.text, stated.rest]  # of several lines
    return any(same_but_for_case(_words(text), wanted) for text in texts)


def _words(text: str) -> str:
    """Return *text* without marks, brackets and an article at its ends."""
    bare = plain(text)
    bare = without_end(bare) or bare
    if len(bare) > 2 and bare[0] + bare[-1] in ("()", "[]") and bare.count(bare[0]) == 1:
        bare = bare[1:-1].strip()
    return _ARTICLE.sub("", bare, count=1) if _ARTICLE.match(bare) else bare


async def _same_formula(stated: Statement, reference: str) -> bool:
    wanted = "".join(plain(reference).split())
    texts = list(_candidates(stated))
    if any("".join(text.split()) in (wanted, without_end(wanted)) for text in texts):
        return True
    if needs_math():
        raise RewardFault(MISSING)
    from quintain_rewards.math_verify import shared_verifier

    for text in texts:
        try:
            verdict = await shared_verifier().averify(
                reference, f"\\boxed{{{text}}}", timeout=SECONDS
            )
        except UsageError:  # no formula that can be read: the text decides
            return False
        if verdict.starved:
            raise InfrastructureError(f"same_answer: {verdict.kind.value}: {verdict.reason}")
        if verdict.kind.value == "correct":
            return True
    return False


MISSING = (
    "same_answer compares formulas as mathematics: pip install 'quintain-env-dataset[math]'; "
    "or compare them as text: --arg kind=words"
)


def _same_json(stated: Statement, reference: Any) -> bool:
    if len(stated.rest) > 50 * LONGEST:
        return False
    texts = [stated.text, _FENCE.sub("", stated.text), plain(stated.text[:LONGEST])]
    if stated.mark in ("words", "line", "hashes"):
        texts.append(_FENCE.sub("", stated.rest))
    return any(_equal(json_value(text.strip().rstrip(".")), reference) for text in texts)


def _equal(given: Any, reference: Any) -> bool:
    """Return whether two JSON values are equal: numbers by value, text in one spelling, true is
    no 1.
    """
    if isinstance(given, bool) or isinstance(reference, bool):
        return given is reference
    if isinstance(given, (int, float)) and isinstance(reference, (int, float)):
        return given == reference
    if isinstance(given, str) and isinstance(reference, str):
        return respelled(given) == respelled(reference)
    if isinstance(given, list) and isinstance(reference, (list, tuple)):
        return len(given) == len(reference) and all(map(_equal, given, reference))
    if isinstance(given, Mapping) and isinstance(reference, Mapping):
        return given.keys() == reference.keys() and all(
            _equal(given[key], reference[key]) for key in given
        )
    return given is None and reference is None
