"""Sets of real numbers: intervals, unions, conditions on one variable. Runs in workers only."""

from __future__ import annotations

import re
from typing import Any

import sympy

from .expressions import Unreadable, equal_values, expression
from .structure import bracketed, items, relation, split

EMPTY = frozenset(
    "no solution,no solutions,no real solution,no real solutions,empty set,null set,there are no "
    "solutions,there is no solution,no such number,no such numbers,none exist".split(",")
)
_REALS = frozenset(
    "all real numbers,all reals,all real,real numbers,any real number,all real x,every real number".split(
        ","
    )
)
_NUMBER_SETS = {
    r"\mathbb{R}": sympy.S.Reals,
    r"\mathbb{Z}": sympy.S.Integers,
    r"\mathbb{N}": sympy.S.Naturals,
    r"\mathbb{Q}": sympy.S.Rationals,
    r"\mathbb{C}": sympy.S.Complexes,
    r"\emptyset": sympy.S.EmptySet,
    r"\{\}": sympy.S.EmptySet,
}
# bold or plain, beside another set
_NUMBER_SETS |= {name: _NUMBER_SETS[rf"\mathbb{{{name}}}"] for name in "RZNQ"}
_ORDER = {"<": ("<", False), ">": (">", False), r"\le": ("<", True), r"\ge": (">", True)}
_JOINED = re.compile(
    r"\\text\{\s*(or|and)\s*\}|(?<![A-Za-z\\])(or|and)(?![A-Za-z])|(\\lor|\\land|,(?![^(]*\)))"
)
_SIMPLE = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\{\w+\}|\w))?(?:\([a-z]\))?")


def worded(text: str | None) -> str | None:
    """Return the LaTeX of a set that is given in words; ``None`` for other words."""
    if text in EMPTY:
        return r"\emptyset"
    return r"\mathbb{R}" if text in _REALS else None


def looks_like_set(text: str) -> bool:
    """Return whether *text* may denote a set of numbers rather than a number, a point or a list."""
    if (
        re.search(
            r"\\(?:cup|cap|setminus|in(?![a-z])|mathbb|emptyset)|<|>|\\(?:le|ge|ne)(?![a-z])", text
        )
        or text == r"\{\}"
    ):
        return True
    pair = bracketed(text)
    return (pair is not None and "[" in pair[0] + pair[2]) or (
        pair is not None and "]" in pair[0] + pair[2]
    )


def number_set(text: str) -> Any | None:
    """Return the sympy set that *text* denotes; ``None`` where it denotes none.

    Raises:
        Unreadable: it looks like a set, but a bound does not parse.
    """
    text = text.strip()
    if text in _NUMBER_SETS:
        return _NUMBER_SETS[text]
    result = _operated(text)
    if result is not None:
        return result
    pair = bracketed(text)
    if pair is not None and pair[0] == r"\{":
        return _braced(pair[1])
    if pair is not None and pair[0] in "([" and pair[2] in ")]":
        ends, _ = split(pair[1], (",", ";"))
        if len(ends) == 2:
            left, right = (expression(_signed(e)) for e in ends)
            if left.free_symbols or right.free_symbols:
                return None
            return sympy.Interval(left, right, pair[0] == "(", pair[2] == ")")
        return number_set(pair[1]) if len(ends) == 1 and pair[0] == "(" and pair[2] == ")" else None
    return _condition(text)


def _signed(text: str) -> str:
    return text.removeprefix("+")


def _operated(text: str) -> Any | None:
    """Return a union, intersection, difference, or what a variable is in."""
    parts, signs = split(text, (r"\in", r"\notin"))
    if signs and len(parts) == 2 and _SIMPLE.fullmatch(parts[0]):
        inner = number_set(parts[1])
        return inner if signs == [r"\in"] or inner is None else sympy.S.Reals - inner
    for sign, join in ((r"\cup", sympy.Union), (r"\cap", sympy.Intersection)):
        parts, signs = split(
            text, (sign, "U") if sign == r"\cup" and ")U(" in text.replace(" ", "") else (sign,)
        )
        if signs:
            sets = [number_set(p) for p in parts]
            return None if any(s is None for s in sets) else join(*sets)
    parts, signs = split(
        text, (r"\setminus", "-") if text.startswith(r"\mathbb") else (r"\setminus",)
    )
    if signs and len(parts) == 2:
        left, right = number_set(parts[0]), number_set(parts[1])
        return None if left is None or right is None else left - right
    return None


def _braced(content: str) -> Any | None:
    head, signs = split(content, ("|", ":"))
    if signs and len(head) == 2:
        domain = number_set(head[0]) if r"\in" in head[0] else sympy.S.Reals
        inner = number_set(head[1])
        return None if inner is None or domain is None else inner & domain
    if "<" in content or ">" in content or re.search(r"\\(?:le|ge|ne)(?![a-z])", content):
        return number_set(content)
    if r"\ldots" in content or "(" in content or not content:
        return None if content else sympy.S.EmptySet
    return sympy.FiniteSet(*(expression(e) for e in items(content)))


def _condition(text: str) -> Any | None:
    """Return the solutions of inequalities in one variable: ``1<x\\le3``, ``x<1`` or ``x>3``,
    ``x\\ne0``.
    """
    joined = _JOINED.split(text)
    parts = [p for p in joined[0::4] if p and p.strip()]
    joins = {j.strip() for k in (1, 2, 3) for j in joined[k::4] if j}
    if len(parts) > 1 and r"\in" not in text:
        sets = [_value(p) or _condition(p) for p in parts]
        if any(s is None for s in sets) or len({_variable(p) for p in parts}) != 1:
            return None
        union = bool(joins & {"or", r"\lor"})
        return sympy.Union(*sets) if union else sympy.Intersection(*sets)
    members, signs = relation(text)
    if not signs or not all(s in _ORDER or s == r"\ne" for s in signs) or len(members) > 3:
        return None
    variable = _variable(text)
    if not variable:
        return None
    result: Any = sympy.S.Reals
    for left, sign, right in zip(members, signs, members[1:], strict=False):
        one = _single(left, sign, right, variable)
        if one is None:
            return None
        result = result & one
    return result


def subject(text: str) -> str:
    """Return the variable that a condition is about; empty for a set that names none outside its
    braces.
    """
    if bracketed(text) is not None:
        return ""
    member, signs = split(text, (r"\in", r"\notin"))
    if signs:
        return member[0] if _SIMPLE.fullmatch(member[0]) else ""
    first = _JOINED.split(text)[0]
    return _variable(first) if relation(first)[1] else ""


def _value(text: str) -> Any | None:
    """Return the one element of ``x=1``, a part of a condition such as ``x=1`` or ``x>2``."""
    members, signs = relation(text)
    if signs != ["="] or not _SIMPLE.fullmatch(members[0]):
        return None
    value = expression(_signed(members[1]))
    return None if value.free_symbols else sympy.FiniteSet(value)


def _variable(text: str) -> str:
    """Return the one variable of a condition; empty where there are more."""
    members, _ = relation(text)
    names = [m for m in members if _SIMPLE.fullmatch(m) and m not in (r"\pi", "e", r"\infty")]
    if names:
        return names[0] if len(set(names)) == 1 else ""
    try:
        symbols = {s.name for m in members for s in expression(m).free_symbols}
    except Unreadable:
        return ""
    return symbols.pop() if len(symbols) == 1 else ""


def _single(left: str, sign: str, right: str, variable: str) -> Any | None:
    """Return the numbers that satisfy one relation *left sign right* in *variable*; ``None`` where
    another symbol decides them.
    """
    # The variable alone on one side is by far the most frequent relation, and an interval needs no
    # solver.
    if variable in (left, right):
        bound = expression(_signed(right if left == variable else left))
        if bound.free_symbols:
            return None
        if sign == r"\ne":
            return sympy.S.Reals - sympy.FiniteSet(bound)
        order, closed = _ORDER[sign]
        # x < 3 and 3 > x bound x from above, x > 3 and 3 < x from below.
        bounded_above = order == "<" if left == variable else order == ">"
        if bounded_above:
            return sympy.Interval(-sympy.oo, bound, True, not closed)
        return sympy.Interval(bound, sympy.oo, not closed, True)
    a = expression(left)
    b = expression(right)
    symbols = a.free_symbols | b.free_symbols
    if len(symbols) != 1:
        return None
    kinds = {"<": sympy.Lt, ">": sympy.Gt, r"\le": sympy.Le, r"\ge": sympy.Ge, r"\ne": sympy.Ne}
    condition = kinds[sign](a, b)
    # The symbol may cancel, as in x < x + 1: then every number satisfies it, or none does.
    if condition == sympy.true:
        return sympy.S.Reals
    if condition == sympy.false:
        return sympy.S.EmptySet
    return condition.as_set()


def same_sets(a: Any, b: Any) -> bool:
    """Return whether two sets of numbers have the same elements."""
    if a == b:
        return True
    if isinstance(a, sympy.FiniteSet) and isinstance(b, sympy.FiniteSet):
        return len(a) == len(b) and all(any(equal_values(x, y) for y in b) for x in a)
    if isinstance(a, sympy.Interval) and isinstance(b, sympy.Interval):
        same_brackets = (a.left_open, a.right_open) == (b.left_open, b.right_open)
        return bool(same_brackets and equal_values(a.start, b.start) and equal_values(a.end, b.end))
    if isinstance(a, sympy.Union) and isinstance(b, sympy.Union) and len(a.args) == len(b.args):
        return all(any(same_sets(x, y) for y in b.args) for x in a.args)
    return a.symmetric_difference(b).is_empty is True
