"""Values between the sandboxes: what is written is read as exactly that, and nothing else is read
at all.
"""

from __future__ import annotations

import datetime
import json
import math
import string
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain_env_code.inside.values import (
    BITS,
    BUILDERS,
    DEPTH,
    SIZE,
    Codec,
    MalformedError,
    NotPlainError,
)

CODEC = Codec()

NUMBERS = (
    st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
)
TIMES = (
    st.dates() | st.timedeltas() | (st.datetimes() | st.times()).map(lambda t: t.replace(fold=0))
)
HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.decimals(allow_nan=False)
    | TIMES
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=6,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, dicts = st.lists(inner, max_size=4), st.dictionaries(HASHABLE, inner, max_size=4)
    kinds = lists | lists.map(tuple) | lists.map(deque) | dicts | dicts.map(OrderedDict)
    return (
        kinds
        | st.sets(HASHABLE, max_size=4)
        | st.dictionaries(st.text(), st.integers(), max_size=4).map(Counter)
    )


RANGES = st.builds(range, st.integers(), st.integers(), st.integers(1, 9))
VALUES = st.recursive(HASHABLE | st.binary().map(bytearray) | RANGES, containers, max_leaves=8)


def same(a: Any, b: Any) -> bool:
    """Equal, with equal types throughout, and with equal signs of zeros."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(*pair) for pair in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    if isinstance(a, (set, frozenset)):
        return a == b and {type(x) for x in a} == {type(x) for x in b}
    return bool(a == b)


@given(VALUES)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    text = CODEC.write(value)
    assert text.isascii()
    assert "\n" not in text
    assert same(value, CODEC.read(text)), text


@given(st.text(alphabet=string.printable + "é\ud800"))
def test_any_text_is_read_or_refused(text: str) -> None:
    """What is read consists of types that both sides know."""
    try:
        value = CODEC.read(text)
    except MalformedError:
        return
    assert same(value, CODEC.read(CODEC.write(value)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*BUILDERS, "x"]), inner, min_size=1, max_size=2)
    ),
    max_leaves=10,
)


@given(JSON)
def test_any_json_is_read_as_canonical_values_or_refused(data: Any) -> None:
    try:
        value = CODEC.read(json.dumps(data))
    except MalformedError:
        return
    assert same(value, CODEC.read(CODEC.write(value)))


@pytest.mark.parametrize(
    "text",
    [
        "", "[1", "[1]]", "[1] [2]", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000,
        "'a'",
        '{"tuple":[1],"tuple":[1]}', '{"tuple":[1],"list":[1]}', "{}", '{"object":[1]}',
        '{"tuple":1}', '{"set":"ab"}',
        '{"dict":[[1,2],[1,3]]}', '{"dict":[[1,2],[true,3]]}', '{"dict":[[[1],2]]}', '{"dict":[1]}',
        '{"set":[1,1.0]}',
        '{"set":[[1]]}', '{"int":"12g"}', '{"int":12}', '{"float":"1.5"}', '{"float":"infinity"}',
        '{"bytes":"0"}',
        '{"fraction":["1e9999999",1]}', '{"fraction":[1,0]}', '{"date":[2024,2,30]}',
        '{"date":[{"bytes":"07e80101"}]}',
        '{"range":[0,1,0]}', '{"range":[1.5]}', '{"builtin":"eval"}', '{"builtin":"__import__"}',
        '{"builtin":"open"}',
        '{"special":"None"}', '{"ref":[0,"x",null]}', '{"decimal":[1]}', '{"complex":[1,2,3]}',
        '{"counter":[1]}',
        "[" * 5000 + "]" * 5000, '{"tuple":[' * 400 + "]}" * 400,
    ],
)  # fmt: skip
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        CODEC.read(text)


def test_a_flood_of_brackets_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(CODEC, "_json")
    with pytest.raises(MalformedError, match="deeply"):
        CODEC.read("[" * (SIZE - 1))


def test_brackets_in_text_are_no_nesting() -> None:
    value = ["[" * 10_000, '"{' * 5_000]
    assert value == CODEC.read(CODEC.write(value))


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


def test_only_canonical_types_are_written() -> None:
    """Subclasses, functions, modules and other objects are refused, deep inside a value, too."""
    looped: list[Any] = []
    looped.append(looped)
    deep: Any = 1
    for _ in range(DEPTH + 1):
        deep = [deep]
    aware = datetime.datetime.now(datetime.UTC)
    odd = [Colour.RED, Point(1), Text("x"), object(), print, json, iter([1])]
    odd += [looped, deep, aware, 1 << (BITS + 1), "x" * (SIZE + 1)]
    odd += [type("Fraction", (Fraction,), {})(1), type("Decimal", (Decimal,), {})(1)]
    for value in odd:
        with pytest.raises(NotPlainError):
            CODEC.write(value)
        with pytest.raises(NotPlainError):
            CODEC.write([{"a": (1, value)}])


def test_a_reader_builds_a_new_nan_each_time() -> None:
    """Containers take one and the same nan for equal, so two must not be one object."""
    assert CODEC.read('[{"float":"nan"}]') != CODEC.read('[{"float":"nan"}]')
