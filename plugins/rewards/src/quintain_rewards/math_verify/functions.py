"""Functions and sequences by name, the variables that their definition binds, and remarks on the
usual domain.
"""

from __future__ import annotations

import re

from .structure import items, tokens

_LETTER = (
    r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|Gamma|delta|Delta|phi|Phi|psi|Psi|rho|"
    r"sigma|theta|Theta|omega|Omega|lambda|mu|tau|xi|eta|chi))"
)
_INDEX = r"(?:_(?:\{\w+\}|\w))?"
_CALL = re.compile(
    rf"(?P<name>{_LETTER}{_INDEX}'*)\((?P<arguments>{_LETTER}{_INDEX}(?:,{_LETTER}{_INDEX})*)\)=(?P<value>.+)",
    re.DOTALL,
)
_SEQUENCE = re.compile(r"(?P<name>[A-Za-z])_\{?(?P<arguments>[a-z])\}?=(?P<value>.+)", re.DOTALL)
_ARROW = re.compile(rf"(?:(?P<name>[A-Za-z]):)?(?P<argument>{_LETTER})\\mapsto ?(?P<value>.+)")
_USUAL_ARGUMENTS = frozenset("nrstuvwxyz")
"""Letters that are variables also where the value does not depend on them, as in f(x) = 5."""
_PLACEHOLDERS = "zwqyvutspZWQYVUTSP"

_EVERY = r"(?:for\s*)?(?:all|any|every|each)"
_REAL = r"(?:\s*(?:real|arbitrary))?(?:\s*(?:numbers?|values?)(?:\s*of)?)?"
_A_SET = r"(?P<set>\\mathbb\{[RZ]\}|[RZ](?![A-Za-z]))"
_NAMES = r"(?P<names>[A-Za-z](?:,[A-Za-z])*)"
_FOR_EVERY = (
    rf"(?:\\text\{{\(?{_EVERY}{_REAL}\}}|\\forall|{_EVERY}{_REAL}(?![A-Za-z]))"
    rf"\s*{_NAMES}(?:\s*\\in\s*{_A_SET})?"
)
_CONNECTIVE = (
    r"(?:\\text\{,?\s*(?:where|with|for|when|and)\}|(?<![A-Za-z])(?:where|with|for)(?![A-Za-z]))"
)
_CONSTANT = (
    r"(?:an?\s+|any\s+|some\s+)?(?:(?:arbitrary|real|any|integration)\s+)*"
    r"(?:constants?|number|parameter)(?:\s+of\s+integration)?"
)
_REMARKS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"^\(?{_FOR_EVERY}\)?\s*[,:;]",
        rf"[,;]?\s*\(?{_FOR_EVERY}\)?$",
        rf"(?:[,;(]|[,;(]?\s*{_CONNECTIVE})\s*{_NAMES}\s*\\in\s*{_A_SET}\)?$",
        rf"[,;]?\s*\(?(?:{_CONNECTIVE}\s*)?{_NAMES}(?:\\text\{{(?:(?:is|are|being|denotes)\s+)?{_CONSTANT}\}}|\s+(?:is|are|being)\s+{_CONSTANT})\)?$",
        rf"[,;]?\s*\(?(?:\\text\{{(?:with|for)\s+{_CONSTANT}\}}|(?:with|for)\s+{_CONSTANT}\s)\s*{_NAMES}\)?$",
    )
)
_WHOLE = frozenset("jklmn")
"""Letters that stand for whole numbers, as in ``x=k\\pi``."""


def without_remark(text: str) -> tuple[str, str]:
    """Return normalised *text* without a remark that says what is usual, and the set that the
    remark names, if it names one: for all x, x is real, k is whole, c is a constant.

    A remark on a smaller domain stays, as does one on a variable that the rest does not have.
    """
    for pattern in _REMARKS:
        match = pattern.search(text)
        if match is None:
            continue
        rest = f"{text[: match.start()]}{text[match.end() :]}".strip(" ,;")
        names = match["names"].split(",")
        domain = (match.groupdict().get("set") or "").replace(r"\mathbb", "").strip("{}")
        usual = domain != "Z" or _WHOLE.issuperset(names)
        if rest and usual and set(tokens(rest)).issuperset(names):
            return rest, f"{match['names']} in {domain}" if domain else ""
    return text, ""


def arrow(text: str) -> str:
    """Return ``x \\mapsto 2x`` as ``y(x)=2x``, and other text as it is."""
    match = _ARROW.fullmatch(text)
    if match is None:
        return text
    return f"{match['name'] or 'y'}({match['argument']})={match['value']}"


def definition(text: str) -> tuple[str, list[str], str] | None:
    """Return the name, the arguments and the value of ``f(x,y)=...`` or ``a_n=...``; ``None`` for
    other text.
    """
    match = _CALL.fullmatch(text) or _SEQUENCE.fullmatch(text)
    if match is None or len(items(text)) > 1:
        return None
    arguments = match["arguments"].split(",")
    if any(a[0].isupper() for a in arguments) or len(set(arguments)) < len(arguments):
        return None  # events and points are no variables
    name = match["name"] if match.re is _CALL else f"{match['name']}_"
    return name, arguments, match["value"]


def with_the_same_variables(
    one: tuple[list[str], str], other: tuple[list[str], str]
) -> tuple[str, str] | None:
    """Return two values with the same names for their bound variables, which are given before
    them; ``None`` where a variable of one may be a constant, as in f(a) = 5.
    """
    taken = {*tokens(one[1]), *tokens(other[1])}
    free = [letter for letter in _PLACEHOLDERS if letter not in taken]
    first = _renamed(one[0], one[1], free)
    second = _renamed(other[0], other[1], free)
    return None if first is None or second is None else (first, second)


def _renamed(arguments: list[str], value: str, free: list[str]) -> str | None:
    if len(arguments) > len(free):
        return None
    places = dict(zip(arguments, free, strict=False))
    for argument, place in places.items():
        if "_" in argument:
            value = value.replace(argument, place)
    token_list = tokens(value)
    found = {*token_list, *places.values()}
    renamed: list[str] = []
    before = ""
    for token in token_list:
        renamed.append(token if before == "_" else places.get(token, token))
        before = token
    known = all(a in found or a in _USUAL_ARGUMENTS or "_" in a for a in arguments)
    return "".join(renamed) if known else None
