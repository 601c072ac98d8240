"""A covering array of strength two: few rows in which every allowed pair of values of two factors
occurs.

Greedy and deterministic, as in AETG (Cohen et al. 1997): each row begins with a pair that is still
missing, and takes for every other factor the value that adds most missing pairs, as long as no rule
forbids the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

Row = Mapping[str, str]
Factors = Mapping[str, Sequence[str]]
Rule = Callable[..., bool]
"""Whether it forbids a row; its parameters are the factors that it reads."""
Pair = frozenset[tuple[str, str]]


def reads(rule: Rule) -> tuple[str, ...]:
    return rule.__code__.co_varnames[: rule.__code__.co_argcount]


def forbidden(row: Row, rules: Sequence[Rule]) -> list[Rule]:
    """The rules against *row*, among those that read nothing which it leaves open."""
    return [
        rule
        for rule in rules
        if set(reads(rule)) <= set(row) and rule(*(row[name] for name in reads(rule)))
    ]


def pairs_of(row: Row) -> Iterator[Pair]:
    return (frozenset(pair) for pair in combinations(row.items(), 2))


def every_pair(factors: Factors) -> list[Pair]:
    """In the order of the factors and their values."""
    return [
        frozenset({(one, a), (other, b)})
        for one, other in combinations(factors, 2)
        for a, b in product(factors[one], factors[other])
    ]


def completed(
    start: Row, factors: Factors, rules: Sequence[Rule], missing: set[Pair], turn: int
) -> Row | None:
    """*start* with a value of every factor, chosen for the pairs in *missing*; ``None`` where rules
    forbid all.
    """
    if forbidden(start, rules):
        return None
    left = [name for name in factors if name not in start]
    if not left:
        return start
    name, values = left[0], list(factors[left[0]])
    # ties: another value in each row
    values = values[turn % len(values) :] + values[: turn % len(values)]

    def gain(value: str) -> int:
        return sum(frozenset({(name, value), held}) in missing for held in start.items())

    for value in sorted(values, key=gain, reverse=True):
        row = completed({**start, name: value}, factors, rules, missing, turn)
        if row is not None:
            return row
    return None


def covering(
    factors: Factors, rules: Sequence[Rule], before: Sequence[Row] = ()
) -> tuple[list[Row], set[Pair]]:
    """Rows that, with those *before* them, hold every pair that can occur; and the pairs that
    cannot.
    """
    ordered = every_pair(factors)
    missing = set(ordered) - {pair for row in before for pair in pairs_of(row)}
    rows: list[Row] = []
    never: set[Pair] = set()
    for pair in ordered:
        if pair not in missing:
            continue
        row = completed(dict(sorted(pair)), factors, rules, missing, len(rows))
        if row is None:
            never.add(pair)
            missing.discard(pair)
            continue
        rows.append({name: row[name] for name in factors})
        missing.difference_update(pairs_of(rows[-1]))
    return rows, never
