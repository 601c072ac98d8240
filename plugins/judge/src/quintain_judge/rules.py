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

from quintain.errors import UsageError

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


_UNSPACED = r"\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, which stand without spaces between words."""
_LETTERS = rf"(?:(?![{_UNSPACED}])[^\W_])+"
_WORD = re.compile(
    rf"[{_UNSPACED}]|{_LETTERS}(?:['\u2019-]{_LETTERS}|(?<=\d)[.,](?=\d){_LETTERS})*"
)
_SENTENCE = re.compile(r"(?:[^.!?\u3002\uff01\uff1f\n]|(?<=\d)[.](?=\d))+[.!?\u3002\uff01\uff1f]*")


def words(text: str) -> list[str]:
    """Return the words of *text*: runs of letters, digits and apostrophes, and numbers such as
    3.50.

    Each Chinese character and each kana counts as one, as their writers count.
    """
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Return the sentences of *text* that have a word, each to its end mark, which a point between
    digits is not.
    """
    return [s.strip() for s in _SENTENCE.findall(text) if words(s)]


def _compared(count: int, how: str, number: str) -> bool:
    bound = int(number)
    return {"at most": count <= bound, "at least": count >= bound, "exactly": count == bound}[
        how.lower()
    ]


def _places(text: str, phrase: str) -> list[int]:
    """Find *phrase* in *text* as whole words; in a script without spaces, anywhere."""
    edge = re.compile(rf"[^\W{_UNSPACED}]")
    before = r"(?<!\w)" if edge.match(phrase[0]) else ""
    after = r"(?!\w)" if edge.match(phrase[-1]) else ""
    return [m.start() for m in re.finditer(before + re.escape(phrase) + after, text, re.IGNORECASE)]


def _count(text: str, phrase: str) -> int:
    return len(_places(text, phrase))


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
    ones, others = _places(reply, first), _places(reply, second)
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


@_rule(rf"Has {_COMPARED} lines?", "Has exactly 3 lines.")
def _line_count(reply: str, how: str, number: str) -> bool:
    return _compared(sum(bool(line.strip()) for line in reply.splitlines()), how, number)


@_rule(rf"Has {_COMPARED} list items?", "Has exactly 3 list items.")
def _item_count(reply: str, how: str, number: str) -> bool:
    return _compared(
        len(re.findall(r"^\s*(?:[-*\u2022]|\d+[.)])\s+\S", reply, re.MULTILINE)), how, number
    )


@_rule(rf"Begins with {_QUOTED}", 'Begins with "Dear".')
def _begins(reply: str, phrase: str) -> bool:
    return 0 in _places(reply.strip(), phrase)


@_rule(rf"Ends with {_QUOTED}", 'Ends with "thanks.".')
def _ends(reply: str, phrase: str) -> bool:
    text = reply.strip()
    return any(len(text) - place == len(phrase) for place in _places(text, phrase))


@_rule(r"Is in (lower|upper) case", "Is in lower case.")
def _case(reply: str, case: str) -> bool:
    return any(map(str.isalpha, reply)) and reply == (
        reply.lower() if case.lower() == "lower" else reply.upper()
    )


@_rule(r"Is valid JSON", "Is valid JSON.")
def _json(reply: str) -> bool:
    try:
        json.loads(reply)
    except (ValueError, RecursionError):
        return False
    return True


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
