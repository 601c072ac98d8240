"""Whether an answer equals a reference. Runs in workers: sympy computes here, and its text is never
executed.

Both texts are normalised. The order of the rules matters: notation that stands for something else
than its value (a choice, a base, words) is decided before anything is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from . import sets, structure
from .choices import another_choice, choice
from .dates import clock, moment
from .expressions import Unreadable, equal, equal_values, expression, proportional
from .functions import arrow, definition, with_the_same_variables, without_remark
from .literals import based, rational
from .units import Quantity, compound, quantity, same_dimensions

_LABELLED = re.compile(r"(?:\\text\{\(?[A-J]\)\}|\(?[A-J]\))(?P<content>[-\d\\].*)")
_MODULO = re.compile(r"(?:(.*?)\\equiv)?(.*?)\(?\s*\\(?:pmod|bmod|mod)\s*\{?(\d+)\}?\s*\)?")
_RATIO = re.compile(r"[^:=<>,]+(?::[^:=<>,]+)+")
_CALL = re.compile(r"[a-z]('*)\([a-z]\)")
Rule = Callable[[str, str], bool | None]


def same(gold: str, answer: str) -> bool:
    """Return whether *answer* equals *gold*, both normalised.

    Raises:
        Unreadable: one of them cannot be read.
    """
    gold, answer = (_plain(t) for t in (gold, answer))
    (gold_alone, gold_set), (answer_alone, answer_set) = map(without_remark, (gold, answer))
    if gold_set == answer_set or not (gold_set and answer_set):
        gold, answer = gold_alone, answer_alone
    if gold.endswith("+C") and answer.endswith("+c"):  # the constant of integration
        answer = f"{answer[:-1]}C"
    if gold == answer:
        return not _undefined(gold)
    for rule in _RULES:
        verdict = rule(gold, answer)
        if verdict is not None:
            return verdict
    return False


def readable(gold: str) -> bool:
    """Return whether a normalised reference can be compared with an answer that is written
    otherwise.
    """
    gold, _ = without_remark(_plain(gold))
    if not gold:
        return False
    if (
        structure.words(gold) is not None
        or moment(gold)
        or choice(gold)
        or based(gold)
        or rational(gold) is not None
    ):
        return True
    try:
        return _parses(gold)
    except Unreadable:
        return False


def _parses(text: str) -> bool:
    if sets.looks_like_set(text) and sets.number_set(text) is not None:
        return True
    parts = structure.items(text)
    if len(parts) > 1:
        return all(_parses(p) for p in parts)
    pair = structure.bracketed(text)
    if pair is not None and pair[0] != "{":
        return not pair[1] or all(_parses(p) for p in structure.items(pair[1]))
    if structure.matrix(text) is not None or structure.words(text) is not None:
        return True
    if _RATIO.fullmatch(text) or _MODULO.fullmatch(text):
        return True
    members, signs = structure.relation(text)
    if signs:
        return all(structure.is_name(m) or _parses(m) for m in members if m)
    for member in members:
        for variant in structure.variants(member):
            parsed = quantity(variant)
            if parsed is None:
                return False
            expression(parsed.value)
    return True


def _plain(text: str) -> str:
    """Return *text* without brackets that only group, with French open brackets as usual ones."""
    text = re.sub(
        r"(?<![\w)\]}])\](-?[^\[\](),;]+[,;][^\[\](),;]+)([\[\]])(?!\d)",
        lambda m: f"({m[1]}" + (")" if m[2] == "[" else "]"),
        text,
    )
    text = re.sub(r"(?<=[\[(])([^\[\](),;]+[,;][^\[\](),;]+)\[(?![^\]]*\])", r"\1)", text)
    text = compound(text) or text
    text = re.split(r"\\(?:Rightarrow|Longrightarrow|therefore)(?![A-Za-z])", text)[-1].strip()
    if re.fullmatch(r"\{[^{}]*[:|][^{}]*\}", text):  # braces that were meant to be seen
        text = rf"\{{{text[1:-1]}\}}"
    words = structure.words(text)
    worded = sets.worded(words) or structure.spoken_number(words)
    return arrow(structure.unwrapped(worded or text.strip()))


def _undefined(text: str) -> bool:
    return bool(re.fullmatch(r"\\text\{nan\}|nan|\\frac\{[^{}]*\}\{0\}|\d+/0", text))


# ---- rules: a verdict, or None where the rule does not apply -------------------------------------


def _based(gold: str, answer: str) -> bool | None:
    """Compare numbers that state a base, which is part of the answer: the number without it, or in
    another base, is another answer.
    """
    a, b = based(gold), based(answer)
    if a is None and b is None:
        return None
    if a is not None and b is not None:
        return a == b and a[0] >= 0
    decimal, other = (a or b), rational(gold if a is None else answer)
    return decimal is not None and decimal[1] == 10 and other == decimal[0]


def _choices(gold: str, answer: str) -> bool | None:
    """Compare choices: a letter from A to J names one, with or without parentheses and its content.

    Where the reference is the content alone, the answer may have its letter before it.
    """
    reference = choice(gold)
    labelled = _LABELLED.fullmatch(answer)
    if reference is None and labelled and not re.search(r"(?<![\\A-Za-z])[A-J](?![A-Za-z])", gold):
        return same(gold, labelled["content"])
    if reference is None or (
        not reference[1] and not re.fullmatch(r"\W*(?:\\text\{)?\W*[A-J]\W*", gold)
    ):
        return None
    given = choice(answer)
    if given is None or re.search(r"\b[A-J]\)|\\text\{\(?[A-J]", given[1]):
        return bool(reference[1]) and structure.words(answer) is None and same(reference[1], answer)
    if given[1] and reference[1]:
        return given[0] == reference[0] and same(reference[1], given[1])
    return given[0] == reference[0] and not another_choice(*given)


def _moments(gold: str, answer: str) -> bool | None:
    """Compare times and dates: half of the day and year are part of them, and without them it is
    another answer.
    """
    a, b = moment(gold), moment(answer)
    if a is None and b is None:
        return None
    return (a or clock(gold)) == (b or clock(answer))


def _words(gold: str, answer: str) -> bool | None:
    """Compare words as words, whatever their case; they are not products of their letters."""
    a, b = structure.words(gold), structure.words(answer)
    if a is None and b is None:
        return None
    if a is None or b is None:
        a, b = (w if w is not None else t.lower() for w, t in ((a, gold), (b, answer)))
        joined = any(j in f" {a} {b} " for j in (" and ", " or "))
        if joined:
            return None
    if a == b:
        return True
    if {"and", "or"} <= {*a.split(), *b.split()} and ("or" in a.split()) != ("or" in b.split()):
        return False  # "both" is not "one of them"
    plain = (re.sub(r"\\text\{([^{}]*)\}", r" \1 ", t) for t in (gold, answer))
    listed = [
        sorted(filter(None, (structure.words(i) or i for i in structure.items(t)))) for t in plain
    ]
    return listed[0] == listed[1] and len(listed[0]) > 1


def _modulo(gold: str, answer: str) -> bool | None:
    a, b = _MODULO.fullmatch(gold), _MODULO.fullmatch(answer)
    if a is None or b is None:
        return None
    left, right = ((m[1] or "").strip() for m in (a, b))
    if a[3] != b[3] or (left and right and left != right):
        return False
    try:
        return (int(a[2]) - int(b[2])) % int(a[3]) == 0
    except (ValueError, ZeroDivisionError):
        return a[2] == b[2]


def _sets(gold: str, answer: str) -> bool | None:
    """Compare sets of numbers, which intervals, unions and conditions on one variable are; a point
    is not an interval's other name.
    """
    if (
        not (sets.looks_like_set(gold) or sets.looks_like_set(answer))
        or structure.matrix(gold)
        or structure.matrix(answer)
    ):
        return None
    number_sets = []
    for text in (gold, answer):
        members, signs = structure.relation(text)
        if (
            "=" in signs
            and len(members) == 2
            and structure.is_name(members[0])
            and sets.looks_like_set(members[1])
        ):
            text = members[1]
        number_sets.append(sets.number_set(text))
    if number_sets[0] is None or number_sets[1] is None:
        return None
    names = [sets.subject(text) for text in (gold, answer)]
    if all(names) and not _same_name(*names):
        return False
    return sets.same_sets(*number_sets)


def _functions(gold: str, answer: str) -> bool | None:
    """Compare definitions: the name of a function is its own, and those of its variables are
    free. ``y`` is any function.
    """
    a, b = definition(gold), definition(answer)
    if a is None or b is None:
        return None
    if (a[0] != b[0] and "y" not in (a[0], b[0])) or len(a[1]) != len(b[1]):
        return False
    if a[:2] == b[:2]:
        return None
    values = (a[2], b[2]) if a[1] == b[1] else with_the_same_variables(a[1:], b[1:])
    return values is not None and same(f"y={values[0]}", f"y={values[1]}")


def _matrices(gold: str, answer: str) -> bool | None:
    """Compare matrices entry by entry; a column may be written as a point or a vector, a row may
    not be a column.
    """
    a, b = structure.matrix(_value(gold)), structure.matrix(_value(answer))
    if a is None and b is None:
        return None
    if a is None or b is None:
        one, other = (a or b), _value(answer if b is None else gold)
        if one is None or one[0] == "det":
            return None
        pair = structure.bracketed(other)
        if pair is None or pair[0] not in ("(", r"\langle") or any(len(row) != 1 for row in one[1]):
            return False
        entries = structure.items(pair[1])
        return len(entries) == len(one[1]) and all(
            same(r[0], e) for r, e in zip(one[1], entries, strict=True)
        )
    if a[0] != b[0]:
        return False
    if a[0] == "det":
        return equal(_value(gold), _value(answer))
    shapes = [[len(row) for row in m[1]] for m in (a, b)]
    if shapes[0] != shapes[1]:
        return False
    return all(
        same(x, y) for r, s in zip(a[1], b[1], strict=True) for x, y in zip(r, s, strict=True)
    )


def _value(text: str) -> str:
    """Return what is right of the name in ``A = ...``."""
    members, signs = structure.relation(text)
    return members[1] if signs == ["="] and structure.is_name(members[0]) else text


def _lists(gold: str, answer: str) -> bool | None:
    """Compare several values: in any order, unless they belong to different names or stand in round
    brackets.
    """
    a, b = _elements(gold), _elements(answer)
    if a is None and b is None:
        return None
    if a is None or b is None:
        return _list_and_other(gold, answer, a, b)
    if _interval(gold) and structure.bracketed(_value(answer)) is None:
        return False  # its two ends are not its elements
    (kind_a, list_a), (kind_b, list_b) = a, b
    named_a, named_b = _assignments(list_a), _assignments(list_b)
    if named_a and named_b:
        return named_a.keys() == named_b.keys() and all(
            same(v, named_b[k]) for k, v in named_a.items()
        )
    if kind_a == "tuple" or kind_b == "tuple" or (named_a and not named_b):
        if "set" in (kind_a, kind_b) or (
            kind_a == "list" and kind_b == "tuple" and not named_a and len(list_a) != len(list_b)
        ):
            return False
        ordered_a, ordered_b = (
            list(n.values()) if n else _values(x) for n, x in ((named_a, list_a), (named_b, list_b))
        )
        if named_b and kind_a == "tuple":
            ordered_b = [named_b[k] for k in sorted(named_b)]
        return len(ordered_a) == len(ordered_b) and all(
            same(x, y) for x, y in zip(ordered_a, ordered_b, strict=True)
        )
    return _same_elements(_values(list_a), _values(list_b))


def _interval(text: str) -> bool:
    pair = structure.bracketed(_value(text))
    return (
        pair is not None
        and (pair[0] == "[" or pair[2] == "]")
        and len(structure.items(pair[1])) == 2
    )


def _list_and_other(
    gold: str, answer: str, a: tuple[str, list[str]] | None, b: tuple[str, list[str]] | None
) -> bool | None:
    kind, elements = a or b or ("", [])
    other = answer if b is None else gold
    if kind == "set" and len(elements) == 1:
        return same(elements[0], other)
    if sets.looks_like_set(gold) or sets.looks_like_set(answer):
        return None
    return False


def _elements(text: str) -> tuple[str, list[str]] | None:
    """Return ``list``, ``set`` or ``tuple`` and the elements; ``None`` for a single value. ``\\pm``
    makes two of one.
    """
    value = text
    members, signs = structure.relation(text)
    if signs == ["="] and structure.is_name(members[0]):
        value = members[1]
    pair = structure.bracketed(value)
    if (
        pair is not None
        and pair[0] in (r"\{", "(", r"\langle", "[", "{")
        and (pair[0] == r"\{" or len(structure.items(pair[1])) > 1)
    ):
        kind = {r"\{": "set", "{": "set"}.get(pair[0], "tuple")
        elements = [
            v
            for i in structure.items(pair[1])
            for v in (structure.variants(i) if kind == "set" else [i])
        ]
        return kind, elements
    parts = [v for i in structure.items(text) for v in structure.variants(i)]
    return ("list", parts) if len(parts) > 1 else None


def _assignments(elements: list[str]) -> dict[str, str]:
    """Return the values by name where every element is ``name = value`` with its own name; else
    nothing.
    """
    values: dict[str, str] = {}
    for element in elements:
        members, signs = structure.relation(element)
        if signs != ["="] or not structure.is_name(members[0]) or members[0] in values:
            return {}
        values[members[0]] = members[1]
    return {} if all(re.fullmatch(r"([A-Za-z])_\{?\d\}?", k) for k in values) else values


def _values(elements: list[str]) -> list[str]:
    return [_value(e) for e in elements]


def _same_elements(a: list[str], b: list[str]) -> bool:
    a, b = _distinct(a), _distinct(b)
    if len(a) != len(b):
        return False
    left = list(b)
    for x in a:
        match = next((y for y in left if same(x, y)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _distinct(elements: list[str]) -> list[str]:
    distinct: list[str] = []
    for element in elements:
        if not any(element == other or _quietly_same(element, other) for other in distinct):
            distinct.append(element)
    return distinct


def _quietly_same(a: str, b: str) -> bool:
    try:
        return same(a, b)
    except Unreadable:
        return False


def _relations(gold: str, answer: str) -> bool | None:
    """Compare relations: ``name = value`` is the value; each member of a chain must be right;
    equations are compared up to a factor.
    """
    (members_a, signs_a), (members_b, signs_b) = (
        structure.relation(gold),
        structure.relation(answer),
    )
    if not signs_a and not signs_b:
        return None
    if {*signs_a, *signs_b} - {"=", r"\approx"}:
        return _inequalities(members_a, signs_a, members_b, signs_b)
    name_a, values_a = _named(members_a, signs_a, "")
    name_b, values_b = _named(members_b, signs_b, gold if not signs_a else "")
    if not values_a or not values_b:
        return False
    if len(values_a) == 1 and (name_a or not signs_a):
        if name_a and name_b and not _same_name(name_a, name_b):
            return _equations(members_a, members_b)
        if all(same(values_a[0], v) for v in values_b) and (
            name_b or not signs_b or all(map(_numeric, values_b))
        ):
            return True
        return _equations(members_a, members_b) if name_a and len(members_b) == 2 else False
    return _equations(members_a, members_b)


def _named(members: list[str], signs: list[str], gold: str) -> tuple[str, list[str]]:
    """Return the name at the beginning (or end) of a chain, and the values that it is said to
    equal.

    What follows an ``\\approx`` after an exact value explains it, and is not the answer.
    """
    if r"\approx" in signs and signs.index(r"\approx") > 0:
        members = members[: signs.index(r"\approx") + 1]
    elif signs and signs[0] == r"\approx" and not structure.is_name(members[0]) and members[0]:
        members = members[:1]
    if len(members) == 1:
        return "", members
    first, last = members[0], members[-1]
    if not first:
        return "=", members[1:]
    if structure.is_name(first):
        return (first, []) if first in members[1:] else (first, members[1:])
    if structure.is_name(last) and last != gold:
        return last, members[:-1]
    return "", members


def _same_name(a: str, b: str) -> bool:
    if a == b or "=" in (a, b) or r"\text" in a or r"\text" in b:
        return True
    plain = {re.sub(r"[{}\s\\]", "", n) for n in (a, b)}
    return (
        len({_as_symbol(n) for n in plain}) == 1 and "y" in {n.rstrip("'") for n in plain}
    ) or len(plain) == 1


def _numeric(text: str) -> bool:
    parsed = quantity(text)
    try:
        return parsed is not None and not expression(parsed.value).free_symbols
    except Unreadable:
        return False


def _equations(a: list[str], b: list[str]) -> bool:
    if len(a) != 2 or len(b) != 2:
        return False
    called_a, called_b = (set(filter(_CALL.fullmatch, members)) for members in (a, b))
    if called_a and called_b and called_a != called_b:
        return False
    return proportional(_difference(a), _difference(b), positive=False)


def _difference(members: list[str]) -> object:
    left, right = (expression(_as_symbol(m)) for m in members)
    return left - right


def _as_symbol(text: str) -> str:
    """Treat ``f(x)`` on its own as a dependent variable, and ``f'(x)`` as its derivative."""
    function = _CALL.fullmatch(text)
    return f"y{function[1]}" if function else text


def _inequalities(a: list[str], signs_a: list[str], b: list[str], signs_b: list[str]) -> bool:
    if len(a) != len(b) or len(a) < 2:
        return False
    forms = []
    for members, signs in ((a, signs_a), (b, signs_b)):
        if signs[0] in (">", r"\ge"):
            members, signs = (
                members[::-1],
                [{">": "<", r"\ge": r"\le"}.get(s, s) for s in reversed(signs)],
            )
        forms.append((members, signs))
    (members_a, signs_a), (members_b, signs_b) = forms
    if signs_a != signs_b:
        return False
    if all(x == y for x, y in zip(members_a, members_b, strict=True)):
        return True
    pairs = zip(members_a, members_a[1:], members_b, members_b[1:], strict=False)
    symmetric = signs_a == [r"\ne"]
    return all(
        proportional(_difference([w, x]), _difference([y, z]), positive=not symmetric)
        for w, x, y, z in pairs
    )


def _ratios(gold: str, answer: str) -> bool | None:
    """Compare ratios: ``a:b`` is the fraction; ``a:b:c`` equals its multiples."""
    if not (_RATIO.fullmatch(gold) or _RATIO.fullmatch(answer)):
        return None
    terms = [[t.strip() for t in text.split(":")] for text in (gold, answer)]
    if any(re.fullmatch(r"0\d*", t) for part in terms for t in part):
        return False  # a time of day
    if len(terms[0]) == 2 and len(terms[1]) == 1:
        return equal_values(
            expression(terms[0][0]) / expression(terms[0][1]), expression(terms[1][0])
        )
    if len(terms[0]) == 1 and len(terms[1]) == 2:
        return equal_values(
            expression(terms[0][0]), expression(terms[1][0]) / expression(terms[1][1])
        )
    if len(terms[0]) != len(terms[1]):
        return False
    a, b = ([expression(t) for t in part] for part in terms)
    return (
        all(equal_values(x * b[0], y * a[0]) for x, y in zip(a[1:], b[1:], strict=True))
        and a[0] != 0 != b[0]
    )


def _quantities(gold: str, answer: str) -> bool | None:
    """Compare values with units: the unit may be missing on one side; two units must measure the
    same, in one size.
    """
    a, b = quantity(gold), quantity(answer)
    if a is not None and a.dimensions and b is not None and not b.dimensions:
        # 5m, where the reference is in metres
        b = quantity(re.sub(r"(?<=[\d}])([A-Za-z])$", r"\\text{\1}", answer))
    if a is None or b is None:
        return False
    if a.percent or b.percent:
        return _percent(a, b)
    if a.dimensions and b.dimensions:
        if not same_dimensions(a, b):
            return False
        return _scaled(a, b)
    if not (a.dimensions or b.dimensions):
        return equal(a.value, b.value)
    angle, other = (a, b) if a.dimensions else (b, a)
    if angle.dimensions == (("angle", 1),) and r"\pi" in other.value:  # degrees and radians
        return equal(rf"({angle.value})\cdot\frac{{\pi}}{{180}}", other.value)
    return equal(a.value, b.value)


def _percent(a: Quantity, b: Quantity) -> bool:
    """Compare values with or without a percent sign: ``50\\%`` is 0.5, and no other number; a sign
    that is left out or added is a factor of 100.
    """
    if a.dimensions or b.dimensions:
        return False
    hundredth = [rf"\frac{{{q.value}}}{{100}}" if q.percent else q.value for q in (a, b)]
    return equal(*hundredth)


def _scaled(a: Quantity, b: Quantity) -> bool:
    if a.factor == b.factor:
        return equal(a.value, b.value)
    factor = Fraction(a.factor) / b.factor
    return equal(rf"({a.value})\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}", b.value)


_RULES: tuple[Rule, ...] = (
    _based, _choices, _moments, _words, _modulo, _functions, _matrices, _sets, _lists, _relations, _ratios,
    _quantities,
)  # fmt: skip
