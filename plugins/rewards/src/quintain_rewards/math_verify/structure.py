"""The outer structure of normalised LaTeX: lists, brackets, relations, words. It splits text and
computes nothing.
"""

from __future__ import annotations

import re
from itertools import product

OPENING = {
    "(": ")",
    "[": "]",
    r"\{": r"\}",
    r"\langle": r"\rangle",
    "{": "}",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
}
_CLOSING = set(OPENING.values())
_TOKEN = re.compile(r"\\text\{[^{}]*\}|\\(?:begin|end)\{[^{}]*\}|\\[A-Za-z]+|\\.|.", re.DOTALL)
_JOINERS = re.compile(r"\\text\{\s*,?\s*(?:and|or|and/or)\s*,?\s*\}")
_PLAIN_JOINERS = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx")

MOST_SIGNS = 4
"""Signs ``\\pm`` of one expression that are chosen one by one: 16 values."""

_INDEX = r"(?:_(?:\{[^{}]*\}|\w)|')*"
_GREEK = (
    "alpha beta gamma delta theta phi varphi lambda mu omega Omega sigma rho tau psi epsilon eta "
    "nu xi chi Delta Gamma"
)
_LETTER = rf"(?:[A-Za-z]|\\(?:{'|'.join(_GREEK.split())}))"
_CAPITALS = rf"(?:[A-Z]{_INDEX}){{1,4}}"
_NAME = re.compile(
    # x, x_1, f(x), f^{-1}(x), P(A)
    rf"{_LETTER}{_INDEX}(?:\^\{{?(?:-1|\\circ)\}}?)?(?:\([^()]*\))?"
    rf"|\|?{_CAPITALS}\|?(?:\([^()]*\))?|\\overline\{{{_CAPITALS}\}}|(?:\\angle|\\triangle|\\measuredangle|m\\angle)\s*{_CAPITALS}"
    rf"|\\frac\{{{_CAPITALS}\}}\{{{_CAPITALS}\}}|{_CAPITALS}[:/]{_CAPITALS}"
    rf"|\((?:{_LETTER}{_INDEX},)+{_LETTER}{_INDEX}\)|\[[A-Z]+\]|\|[A-Za-z]\||\\frac\{{d\w\}}\{{d\w\}}|{_LETTER}'+(?:\(\w\))?"
    r"|\\text\{[^{}]*\}(?:\([^()]*\))?|[A-Za-z]{3,}(?: [A-Za-z]+)*|\\(?:max|min)"
    r"|\\(?:det|deg|gcd|lcm)(?:\([^()]*\)|\w)?"
)


_SCALED = re.compile(
    r"(?P<factor>(?:-|\\frac|\\sqrt|\\pi|[\w{}()/.+^])+)(?:\\cdot)?(?P<matrix>\\begin\{([bpB]?matrix)\}.*\\end\{\3\})",
    re.DOTALL,
)
_DENIALS = frozenset(
    "not no nor neither isn't wrong incorrect false true never anything everything but except "
    "other than if unless maybe perhaps possibly nan none null undefined cannot".split()
)
"""Words that make of a name a statement: in "not = 5" nothing is 5."""
_SAME_WORDS = {"dne": "does not exist"}
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def split(text: str, separators: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the parts of *text* between *separators* outside brackets, and the separators
    found.
    """
    parts, separators_found, current, depth = [], [], "", 0
    for token in tokens(text):
        if token in separators and depth <= 0:
            parts.append(current.strip())
            separators_found.append(token)
            current = ""
            continue
        if token in OPENING or token.startswith(r"\begin"):
            depth += 1
        elif token in _CLOSING or token.startswith(r"\end"):
            depth -= 1
        current += token
    return [*parts, current.strip()], separators_found


def items(text: str) -> list[str]:
    """Return the elements of a list without brackets: separated by commas, semicolons, "and" or
    "or".
    """
    text = _PLAIN_JOINERS.sub(";", _JOINERS.sub(";", text))
    text = text.replace(r"\lor", ";").replace(r"\land", ";")
    parts, _ = split(text, (",", ";"))
    return [p for p in parts if p]


def bracketed(text: str) -> tuple[str, str, str] | None:
    """Return the opening, the content and the closing of *text* that is one bracket pair; the kinds
    may differ, as in intervals.
    """
    token_list = tokens(text)
    if len(token_list) < 2 or token_list[0] not in OPENING or token_list[-1] not in _CLOSING:
        return None
    depth = 0
    for i, token in enumerate(token_list):
        depth += (token in OPENING) - (token in _CLOSING)
        if depth == 0 and i < len(token_list) - 1:
            return None
    return (
        (token_list[0], "".join(token_list[1:-1]).strip(), token_list[-1]) if depth == 0 else None
    )


def unwrapped(text: str) -> str:
    """Return *text* without brackets that only group: braces, or parentheses without a comma."""
    for _ in range(10):
        pair = bracketed(text)
        if pair is None:
            return text
        kinds = (pair[0], pair[2])
        groups = kinds == ("{", "}") or (
            kinds == ("(", ")") and len(split(pair[1], (",", ";"))[0]) == 1
        )
        if not groups or not pair[1]:
            return text
        text = pair[1]
    return text


def relation(text: str) -> tuple[list[str], list[str]]:
    """Return the members of a chain of relations and the signs between them; one member where there
    is none.
    """
    parts, signs = split(text, RELATIONS)
    return parts, signs


def is_name(text: str) -> bool:
    """Return whether *text* names a quantity: a symbol, a function of symbols, a length, words."""
    text = text.strip()
    if not _NAME.fullmatch(text) or text in ("e", "i"):
        return False
    # and not the length NO
    worded = text.startswith(r"\text") or re.fullmatch("[A-Za-z ]{3,}", text)
    return not worded or _DENIALS.isdisjoint(
        re.findall(r"[a-z']+", text.lower().replace(r"\text", " "))
    )


def words(text: str) -> str | None:
    """Return the words of an answer in words, lower case without punctuation; ``None`` for
    mathematics.
    """
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).strip(" .!")
    if not re.fullmatch(r"[A-Za-z0-9 ,.'\"()/:;!?-]+", plain) or re.search(r"\d", plain):
        return None
    if r"\text" not in text and not re.search(r"[A-Za-z]{3,}|^(?:no|up|on|in|is|or)$", plain):
        return None
    if (
        r"\text" not in text
        and re.search(r"[()/,;:]", plain)
        and not re.search(r"[A-Za-z]{3,}", plain)
    ):
        return None
    if not re.search(r"[A-Za-z]", plain):
        return None
    if re.fullmatch(r"[A-Za-z]", plain):
        return None
    low = re.sub(r"[^a-z ]", " ", plain.lower())
    kept = " ".join(w for w in low.split() if w not in ("the", "a", "an")) or " ".join(low.split())
    return _SAME_WORDS.get(kept, kept)


def spoken_number(text: str | None) -> str | None:
    """Return the digits of a number below 100 in words ("twenty one"); ``None`` for other words."""
    if text in _UNITS:
        return str(_UNITS.index(text))
    tens, _, unit = (text or "").partition(" ")
    if tens not in _TENS or (unit and unit not in _UNITS[1:10]):
        return None
    return str(20 + 10 * _TENS.index(tens) + (_UNITS.index(unit) if unit else 0))


def matrix(text: str) -> tuple[str, list[list[str]]] | None:
    """Return the kind of brackets and the rows of a matrix, in LaTeX or as nested lists; a factor
    before it is in each entry.
    """
    scaled = _SCALED.fullmatch(text)
    if scaled:
        inner = matrix(scaled["matrix"])
        factor = "-1" if scaled["factor"] == "-" else scaled["factor"]
        if inner is None or inner[0] == "det":
            return None
        return "matrix", [[rf"({factor})\cdot({cell})" for cell in row] for row in inner[1]]
    text = text.replace(r"\begin{smallmatrix}", r"\begin{matrix}").replace(
        r"\end{smallmatrix}", r"\end{matrix}"
    )
    match = re.fullmatch(
        r"[\[(|{]?\s*\\begin\{([a-zA-Z]*matrix|array)\}(?:\{[lcr| "
        r"]*\})?(.*?)\\end\{\1\}\s*[\])|}]?",
        text,
        re.DOTALL,
    )
    if match:
        body = re.sub(r"\\hline|\\\\\s*$", "", match[2].strip())
        rows = [
            [cell.strip() for cell in row.split("&")]
            for row in re.split(r"\\\\(?:\[[^\]]*\])?", body)
        ]
        kind = "det" if match[1] in ("vmatrix", "Vmatrix") or text.startswith("|") else "matrix"
        return kind, rows
    pair = bracketed(text)
    if pair and pair[0] == "[" and pair[2] == "]":
        lists = [bracketed(p) for p in split(pair[1], (",", ";"))[0]]
        if lists and all(p is not None and p[0] == "[" and p[2] == "]" for p in lists):
            return "matrix", [split(p[1], (",",))[0] for p in lists if p is not None]
    return None


def variants(text: str) -> list[str]:
    """Return the readings of a text with ``\\pm``; the text itself where there is none.

    Signs are chosen together only where ``\\mp`` says so: ``\\pm1\\pm i`` are four numbers,
    ``\\pm(1+i)`` two.
    """
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        return [text]
    parts = re.split(r"\\pm(?![A-Za-z])", text)
    if 2 < len(parts) <= MOST_SIGNS + 1 and not re.search(r"\\mp(?![A-Za-z])", text):
        texts = [parts[0] + "".join(s + p for s, p in zip(signs, parts[1:], strict=True))
                 for signs in product("+-", repeat=len(parts) - 1)]  # fmt: skip
        return [v.removeprefix("+") for v in texts]
    plus = re.sub(r"\\mp(?![A-Za-z])", "-", re.sub(r"\\pm(?![A-Za-z])", "+", text))
    minus = re.sub(r"\\mp(?![A-Za-z])", "+", re.sub(r"\\pm(?![A-Za-z])", "-", text))
    return [plus.removeprefix("+"), minus]
