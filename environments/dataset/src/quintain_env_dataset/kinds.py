"""Kinds of answers: what an answer is, and what the answers of a file are."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from quintain.errors import UsageError
from quintain.evaluation import CHOICES, stated_answer, without_end

from .dates import date_key, order_of
from .quantities import whole_quantity
from .sequences import number_sequence
from .spelling import LONGEST, plain

KINDS: Mapping[str, tuple[str, str, str]] = {
    "number": ("number", "numbers", "by value"),
    "choice": ("choice", "choices", "by letter"),
    "words": (
        "word or phrase",
        "words or phrases",
        "as text, without case, a first article and marks at the ends",
    ),
    "formula": ("formula", "formulas", "as mathematics (math_equal)"),
    "date": (
        "date, time or version",
        "dates, times or versions",
        "part by part, in any form, as 6 pm for 18:00 (--arg kind=exact wants that of the file)",
    ),
    "sequence": ("tuple, interval or set", "tuples, intervals or sets", "number by number"),
    "accepted": ("list of accepted answers", "lists of accepted answers", "with each of them"),
    "json": ("JSON value", "JSON values", "as JSON"),
    "text": ("long text", "long texts", "as text, which a reply hardly repeats"),
    "exact": ("text", "texts", "character by character"),
}
"""By name: one, several, and how they are compared."""
ORDERS = ("day first", "month first")
COMMA = "decimal comma"
SETTINGS = (f"number, {COMMA}", "date, day first")
LONG = 200
"""Characters of a text that no reply is expected to repeat."""
FEW = 50
"""Different words or phrases that are counted, as those of a file that sorts texts."""
MOST = 0.8
"""Share of the rows from which on their kind is the file's, and the others may be mistakes."""
_CHOICE = re.compile(rf"\(?([{CHOICES}])[).]?")
_MARKED = re.compile(r"####|box|<", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTIONS = set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt pi min max gcd "
    "lcm mod inf infinity infty theta alpha beta dx dy dt".split()
)
_OPERATORS = re.compile(
    r"[\w)}\]!] ?(?:[+*^=<>\u2264\u2265\u00d7\u00b7]|\\[a-z])|\d ?/ ?[a-z(]|[a-z)] ?[-/] ?[\d(]|\b[a-z] ?- ?[a-z]\b"
    r"|^(?:\d+[a-z]|\d+!|[a-z]!)$"
)
_POINT = re.compile(r"(?<!\d)0?\.\d|\d\.(?!\d{3}(?!\d))\d")
"""A point that separates no thousands."""
_SIGNS = re.compile("[\u221a\u03c0\u221e\u222b\u2211\u2264\u2265\u2260\u00b1\u2208\u222a\u2229]")


def reference_of(answer: Any) -> Any:
    """Return what a stored answer says: JSON that is stored as text, the accepted answers of the
    tables of SQuAD and TriviaQA, and of a worked solution the answer that its mark has.
    """
    if isinstance(answer, Mapping):
        return _accepted_of(answer)
    if not isinstance(answer, str):
        return answer
    if not _MARKED.search(answer):
        return _read(answer)
    stated = stated_answer(answer)
    last = stated.mark == "hashes" and "\n" not in stated.rest.strip()
    if stated.text and (last or stated.mark in ("box", "tag")):
        return stated.text
    return _read(answer)


def _read(answer: str) -> Any:
    """Return the JSON that *answer* is, else *answer*."""
    text = answer.strip()
    if text[:1] in ("[", "{") and len(text) <= LONGEST:
        value = json_value(text)
        if value is None and text.startswith("['"):  # a list as Python writes it into a table
            value = _python_list(text)
        return answer if value is None else _accepted_of(value)
    return answer


def text_of(answer: Any) -> str:
    """Return an answer as a reply states it: the first of several accepted ones, else the text, or
    JSON.
    """
    reference = reference_of(answer)
    if is_accepted(reference):
        reference = reference[0]
    return reference if isinstance(reference, str) else json.dumps(reference, ensure_ascii=False)


def is_accepted(reference: Any) -> bool:
    """Return whether a reference is a list of accepted answers: of texts, or of one value."""
    if not isinstance(reference, (list, tuple)) or not reference:
        return False
    texts = all(isinstance(value, str) for value in reference)
    return texts or (len(reference) == 1 and isinstance(reference[0], (int, float)))


def kind_of(answer: Any, settings: str = "") -> str:
    """Return the kind of an answer, a key of `KINDS`, with what the file's *settings* say of it, as
    in ``number, decimal comma``.
    """
    kind = _kind(reference_of(answer), settings)
    wanted = {
        "number": (COMMA,),
        "sequence": (COMMA,),
        "date": ORDERS,
        "accepted": (COMMA, *ORDERS),
    }
    return ", ".join([kind, *(word for word in wanted.get(kind, ()) if word in settings)])


def settled(kind: str) -> bool:
    """Return whether *kind* names a kind, alone or with settings that `kind_of` knows."""
    name, *settings = kind.split(", ")
    return name in KINDS and set(settings) <= {COMMA, *ORDERS}


def fits(answer: Any, kind: str) -> bool:
    """Return whether an answer can be compared as *kind* says, which a user asks for."""
    name = kind.partition(",")[0]
    reference = reference_of(answer)
    if name in ("words", "text", "formula", "exact"):
        return isinstance(reference, (str, int, float)) and bool(str(reference).strip())
    if name == "json":
        return not isinstance(reference, str) or json_value(reference) is not None
    if name == "date":
        return isinstance(reference, (str, float)) and date_key(plain(str(reference))) is not None
    return _kind(reference, kind) == name


def json_value(text: str) -> Any:
    """Return the object or list that *text* is; ``None`` if it is none, or has a key twice."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _kind(reference: Any, settings: str) -> str:
    if is_accepted(reference):
        return "accepted"
    if isinstance(reference, (Mapping, list, tuple)):
        return "json"
    if isinstance(reference, bool) or reference is None:
        return "words"
    if isinstance(reference, int) and not settings:
        return "number"
    return _kind_of_text(str(reference), settings)


@lru_cache(maxsize=4096)
def _kind_of_text(answer: str, settings: str) -> str:
    if len(answer) > LONGEST:
        return "text"
    text = plain(answer)
    comma = COMMA in settings
    if _CHOICE.fullmatch(text) and "words" not in settings:
        return "choice"
    bare = without_end(text) or text
    if date_key(bare, versions="versions" in settings) is not None:
        return "date"
    if whole_quantity(bare, decimal_comma=comma) is not None:
        return "number"
    if not settings and whole_quantity(bare, decimal_comma=True) is not None:
        return "number"  # of one answer alone a comma may be decimal
    if number_sequence(bare, decimal_comma=comma) is not None:
        return "sequence"
    if is_formula(text):
        return "formula"
    return "text" if len(text) > LONG or "\n" in answer.strip() else "words"


def is_formula(text: str) -> bool:
    """Return whether *text*, in `plain` spelling, is mathematics and no words."""
    if re.search(r"\\[A-Za-z{]", text):
        return True
    words = {word.casefold() for word in _WORD.findall(text)}
    if words - _FUNCTIONS or len(text) > LONG:
        return False
    if re.fullmatch(r"[A-Z][A-Z\d+*/-]*", text):  # F-16, C++, N/A
        return False
    return bool(_SIGNS.search(text) or _OPERATORS.search(text) or words)


@dataclass
class AnswerKinds:
    """What the answers of a file are, row by row.

    Attributes:
        wanted: the kind that the user names; a row that does not fit it is refused.
        counts: rows of each kind, as they are without settings.
        first: places of the first rows of each kind.
        units: numbers with a unit.
        different: words and phrases, up to `FEW` and one.
    """

    wanted: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)
    units: int = 0
    solutions: int = 0
    different: set[str] = field(default_factory=set)
    _evidence: dict[str, int] = field(default_factory=dict)

    def look(self, where: str, answer: Any) -> None:
        """Note the answer of the row at *where*.

        Raises:
            UsageError: it is not of the kind that the user names.
        """
        reference = reference_of(answer)
        if self.wanted and not fits(answer, self.wanted):
            one = KINDS[self.wanted.partition(",")[0]][0]
            raise UsageError(
                f"dataset: {where}: the answer is {str(answer)[:40]!r}; expected a {one}, since kind "
                f"is {self.wanted!r}"
            )
        kind = self.wanted.partition(",")[0] or _kind(reference, "")
        if kind == "number" and not isinstance(reference, int):
            kind = self._number(without_end(plain(str(reference))))
        elif kind == "date":
            text = without_end(plain(str(reference)))
            key = date_key(text)
            self._count("versions", isinstance(key, tuple) and key[0] == "version")
            self._count(order_of(text), True)
        self.solutions += (
            isinstance(answer, str) and reference is not answer and isinstance(reference, str)
        )
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind in ("words", "choice") and len(self.different) <= FEW:
            self.different.add(str(reference))
        places = self.first.setdefault(kind, [])
        if len(places) < 3:
            places.append(where)

    def _number(self, text: str) -> str:
        """Note a number; return its kind, as it is without settings."""
        point = whole_quantity(text)
        quantity = point or whole_quantity(text, decimal_comma=True)
        only = point is None and quantity is not None
        self._count("point", bool(_POINT.search(text)))
        self._count(COMMA, only)
        self._count("short versions", bool(re.fullmatch(r"\d+\.\d+", text)))
        self.units += bool(quantity and quantity[1])
        return "number with a comma" if only else "number"

    def _count(self, name: str, seen: bool) -> None:
        self._evidence[name] = self._evidence.get(name, 0) + seen

    def settings(self) -> str:
        """Return what all rows together tell about each."""
        if self.wanted:
            return self.wanted
        seen = self._evidence
        decimal = seen.get(COMMA, 0)
        others = max(seen.get("point", 0), self.counts.get("sequence", 0))
        words = [COMMA] if decimal and decimal >= others else ["decimal point"]
        orders = [order for order in ORDERS if seen.get(order)]
        words += orders if len(orders) == 1 else []
        numbers = self.counts.get("number", 0) + self.counts.get("number with a comma", 0)
        if seen.get("versions", 0) and numbers == seen.get("short versions", 0):
            words.append("versions")
        if 2 * self.counts.get("choice", 0) < sum(self.counts.values()):
            words.append("words")
        return ", ".join(words)

    def said(self) -> str:
        """Return the kinds, as the first screen says them: how many, how they are compared, and the
        place of what may be a mistake.
        """
        settings = self.settings()
        counts, first = self._decided(settings)
        total = sum(counts.values())
        parts = []
        for kind in sorted(counts, key=counts.__getitem__, reverse=True):
            one, several, how = KINDS[kind]
            count = counts[kind]
            part = f"{count} {one if count == 1 else several}"
            if kind == "number" and self.units:
                part += f", {self.units} with a unit"
                how += " and unit"
            sorts = kind == "words" and "choice" not in counts  # single letters are words, too
            if sorts and len(self.different) <= min(FEW, count // 2):
                part += f", {len(self.different)} different"
            if kind == "number" and COMMA in settings:
                how += ", with decimal commas"
            part += f": compared {how}"
            if kind == "text" or count < (1 - MOST) * total:
                part += f" (first: {', '.join(first[kind])})"
            parts.append(part)
        if self.solutions:
            parts.append(f"of {self.solutions} worked solutions what their mark has is compared")
        return "; ".join(parts)

    def _decided(self, settings: str) -> tuple[dict[str, int], dict[str, list[str]]]:
        counts: dict[str, int] = {}
        first: dict[str, list[str]] = {}
        moved = {
            "number with a comma": "number" if COMMA in settings else "sequence",
            "number": "date" if "versions" in settings else "number",
            "choice": "words" if "words" in settings else "choice",
        }
        for kind, count in self.counts.items():
            name = moved.get(kind, kind)
            counts[name] = counts.get(name, 0) + count
            first[name] = [*first.get(name, ()), *self.first[kind]][:3]
        return counts, first


def _accepted_of(value: Any) -> Any:
    """Return the accepted answers of a table as SQuAD and TriviaQA have it, else *value*."""
    if not isinstance(value, Mapping):
        return value
    texts = value.get("text")
    if "answer_start" in value and isinstance(texts, (list, tuple)) and texts:
        return list(texts)
    aliases = value.get("aliases")
    if isinstance(value.get("value"), str) and isinstance(aliases, (list, tuple)):
        return list(dict.fromkeys([value["value"], *map(str, aliases)]))
    return value


def _python_list(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if is_accepted(value) else None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
