"""Criteria that need no judge: sentences of a fixed grammar, which rules check and a judge can read
as well.

``Has at most 12 words.`` is such a sentence. `check` decides it, so that rubrics work offline and
verifiable instructions (as in IFEval, 2311.07911) cost no call.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable

import regex

from quintain.errors import UsageError

from .counting import (
    begins_with,
    ends_with,
    lines,
    list_items,
    paragraphs,
    places,
    sentences,
    visible,
    words,
)

Check = Callable[..., bool]
_QUOTED = r'"([^"\n]{1,200})"'
_COMPARED = r"(at most|at least|exactly) (\d+)"
_RULES: list[tuple[re.Pattern[str], Check, str]] = []
_PRAISE = re.compile(
    r"\A\W*(?:(?:what|that'?s|that is) an? |an? "
    r")?(?:great|good|excellent|wonderful|fantastic|interesting|amazing|"
    r"brilliant) (?:question|idea|point|topic|choice|request)\b",
    re.IGNORECASE,
)
_SELF_PRAISE = re.compile(
    r"\b(?:this|my|the above) "
    r"(?:answer|response|reply|text|solution)\b.{0,40}\b(?:is|fulfils|fulfills|meets|satisfies|"
    r"addresses|provides|covers|ensures)\b|\bi (?:have )?(?:carefully )?(?:verified|checked|made "
    r"sure|ensured)\b",
    re.IGNORECASE | re.DOTALL,
)


def _rule(pattern: str, example: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        _RULES.append((re.compile(pattern + r"\.?", re.IGNORECASE), function, example))
        return function

    return add


def check(criterion: str, reply: str) -> bool | None:
    """Return whether *reply* meets *criterion*; ``None`` if the criterion is no sentence of the
    grammar.

    >>> check("Has at most 3 words.", "one two three"), check("Is kind.", "hello")
    (True, None)
    """
    sentence = " ".join(criterion.split())
    for pattern, function, _ in _RULES:
        match = pattern.fullmatch(sentence)
        if match:
            return function(reply, *match.groups())
    return None


def checkable(criterion: str) -> bool:
    """Return whether *criterion* is a sentence of the grammar."""
    return check(criterion, "") is not None


def examples() -> list[str]:
    """Return a sentence of each kind."""
    return [example for _, _, example in _RULES]


def decided(criterion: str, reply: str) -> float:
    """Return 1 or 0: whether *reply* meets *criterion*.

    Raises:
        UsageError: no rule decides the criterion; the message names the fix.
    """
    met = check(criterion, reply)
    if met is None:
        raise UsageError(
            f"no rule decides the criterion {criterion[:200]!r}: name a judge that reads it "
            f"([services.judge] with "
            f'args = {{ base_url = "http://..." }}), or write it as one of: {" ".join(examples())}'
        )
    return float(met)


def _compared(count: int, how: str, number: str) -> bool:
    bound = int(number)
    met = {"at most": count <= bound, "at least": count >= bound, "exactly": count == bound}
    return met[how.lower()]


def _count(text: str, phrase: str) -> int:
    return len(places(text, phrase))


@_rule(rf"Mentions {_QUOTED}", 'Mentions "harbour".')
def _mentions(reply: str, phrase: str) -> bool:
    return _count(reply, phrase) > 0


@_rule(rf"Does not mention {_QUOTED}", 'Does not mention "rain".')
def _leaves_out(reply: str, phrase: str) -> bool:
    return _count(reply, phrase) == 0


@_rule(rf'Mentions one of ({_QUOTED}(?:, "[^"\n]+")+)', 'Mentions one of "red", "blue".')
def _mentions_one(reply: str, phrases: str, _: str) -> bool:
    return any(_count(reply, phrase) for phrase in re.findall(r'"([^"]+)"', phrases))


@_rule(rf"Mentions {_QUOTED} before {_QUOTED}", 'Mentions "tea" before "cake".')
def _in_order(reply: str, first: str, second: str) -> bool:
    ones = places(reply, first)
    others = places(reply, second)
    return bool(ones and others) and ones[0] < others[0]


@_rule(rf"Mentions {_QUOTED} {_COMPARED} times", 'Mentions "very" at most 1 times.')
def _mentions_times(reply: str, phrase: str, how: str, number: str) -> bool:
    return _compared(_count(reply, phrase), how, number)


@_rule(rf"Has {_COMPARED} words?", "Has at most 12 words.")
def _word_count(reply: str, how: str, number: str) -> bool:
    return _compared(len(words(reply)), how, number)


@_rule(rf"Has {_COMPARED} sentences?", "Has exactly 2 sentences.")
def _sentence_count(reply: str, how: str, number: str) -> bool:
    return _compared(len(sentences(reply)), how, number)


@_rule(rf"Has {_COMPARED} paragraphs?", "Has exactly 2 paragraphs.")
def _paragraph_count(reply: str, how: str, number: str) -> bool:
    return _compared(len(paragraphs(reply)), how, number)


@_rule(rf"Has {_COMPARED} lines?", "Has exactly 3 lines.")
def _line_count(reply: str, how: str, number: str) -> bool:
    return _compared(len(lines(reply)), how, number)


@_rule(rf"Has {_COMPARED} list items?", "Has exactly 3 list items.")
def _item_count(reply: str, how: str, number: str) -> bool:
    return _compared(len(list_items(reply)), how, number)


@_rule(rf"Begins with {_QUOTED}", 'Begins with "Dear".')
def _begins(reply: str, phrase: str) -> bool:
    return begins_with(reply, phrase)


@_rule(rf"Ends with {_QUOTED}", 'Ends with "thanks.".')
def _ends(reply: str, phrase: str) -> bool:
    return ends_with(reply, phrase)


@_rule(r"Is in (lower|upper) case", "Is in lower case.")
def _case(reply: str, case: str) -> bool:
    return any(map(str.isalpha, reply)) and reply == (
        reply.lower() if case.lower() == "lower" else reply.upper()
    )


_SCRIPTS = "Arabic|Cyrillic|Devanagari|Greek|Hangul|Hebrew|Japanese|Latin|Chinese|Thai"
_LETTERS_OF = {"chinese": r"\p{Han}", "japanese": r"[\p{Han}\p{Hiragana}\p{Katakana}\u30fc]"}


@_rule(rf"Is in ({_SCRIPTS}) letters", "Is in Latin letters.")
def _script(reply: str, script: str) -> bool:
    letters = regex.findall(r"\p{L}", visible(reply))
    one = regex.compile(_LETTERS_OF.get(script.lower(), rf"\p{{{script}}}"))
    return bool(letters) and all(map(one.match, letters))


def is_json(text: str) -> bool:
    """Return whether *text* is one value of JSON (RFC 8259): no ``NaN``, whole numbers of any
    length.
    """
    try:
        json.loads(text, parse_constant=_no_constant, parse_int=len)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


@_rule(r"Is valid JSON", "Is valid JSON.")
def _json(reply: str) -> bool:
    return is_json(reply)


@_rule(r"Repeats no sentence", "Repeats no sentence.")
def _no_repeats(reply: str) -> bool:
    return max(Counter(s.lower().rstrip(".!?") for s in sentences(reply)).values(), default=0) <= 1


@_rule(r"Does not open with praise", "Does not open with praise.")
def _no_praise(reply: str) -> bool:
    return not _PRAISE.search(reply)


@_rule(r"Does not praise itself", "Does not praise itself.")
def _no_self_praise(reply: str) -> bool:
    return not _SELF_PRAISE.search(reply)


@_rule(r"Opens with praise", "Opens with praise.")
def _praise(reply: str) -> bool:
    return bool(_PRAISE.search(reply))


@_rule(r"Praises itself", "Praises itself.")
def _self_praise(reply: str) -> bool:
    return bool(_SELF_PRAISE.search(reply))


@_rule(r"Repeats a sentence", "Repeats a sentence.")
def _repeats(reply: str) -> bool:
    return not _no_repeats(reply)
