"""Values on the wire between the two sandboxes: JSON with fixed tags, rebuilt as exact types.

``null``, booleans, numbers, strings and arrays stand for themselves; an object has exactly one key, its tag. A dict is
``{"dict": [[key, value], ...]}``, whatever its keys are. The reader builds canonical types only, whatever the writer
does: no class, function or pickle of the writer ever reaches it.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds to import
    from typing import Any, BinaryIO

SIZE = 16 << 20
"""Characters of one message."""
DEPTH = 150
"""Nested containers of one value."""
NESTED = 3 * DEPTH + 20
"""Nested arrays and objects of one message: a dict takes three."""
BITS = 1 << 20
"""Bits of one whole number."""
PLAIN_BITS = 13_000
"""Whole numbers of more bits travel as hexadecimal digits: Python refuses to convert more than 4,300 decimal ones."""

_SHARED = """
    abs all any ascii bin bool bytearray bytes chr complex dict divmod float frozenset hex int len list max min object
    oct ord pow range repr round set sorted str sum tuple type
""".split()
BUILTINS: dict[str, Any] = {name: getattr(builtins, name) for name in _SHARED}
BUILTINS |= {
    n: v for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, Exception)
}
"""Types and functions that both sides have, by name."""
_NAMES = {id(value): name for name, value in BUILTINS.items()}


class NotPlainError(Exception):
    """The value has no place on the wire."""


class MalformedError(Exception):
    """The text is not a message."""


def _hexadecimal(text: Any) -> int:
    if type(text) is not str or len(text) > BITS // 4 + 3:
        raise ValueError("no hexadecimal digits")
    return int(text, 16)


def _pairs(items: Any) -> dict[Any, Any]:
    built = {key: value for key, value in items}  # noqa: C416 - each item must be a pair
    if len(built) != len(items):
        raise ValueError("a key twice")
    return built


def _members(items: Any) -> set[Any]:
    built = set(items)
    if len(built) != len(items):
        raise ValueError("a member twice")
    return built


def _decimal(text: Any) -> Any:
    from decimal import Decimal

    if type(text) is not str or len(text) > PLAIN_BITS:
        raise ValueError("no decimal digits")
    return Decimal(text)


def _bytes(text: Any) -> bytes:
    return bytes.fromhex(text)


def _numbers(module: str, name: str) -> Callable[[Any], Any]:
    """Return a constructor of whole numbers only: dates and fractions are also made of text and of pickled states.

    Its module is imported at first use, because every sandbox would pay for it.
    """

    def build(parts: Any) -> Any:
        if any(type(part) is not int for part in parts):
            raise ValueError("no whole number")
        return getattr(import_module(module), name)(*parts)

    return build


def _special_float(text: Any) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError("no special number")
    return float(text)  # a new object: containers compare the same nan as equal


BUILDERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "dict": _pairs,
    "set": _members,
    "frozenset": lambda items: frozenset(_members(items)),
    "int": _hexadecimal,
    "float": _special_float,
    "complex": lambda parts: complex(*map(float, parts)),
    "bytes": _bytes,
    "bytearray": lambda text: bytearray(_bytes(text)),
    "range": _numbers("builtins", "range"),
    "counter": lambda items: Counter(_pairs(items)),
    "ordered": lambda items: OrderedDict(_pairs(items)),
    "deque": lambda parts: deque(parts[0], parts[1]),
    "decimal": _decimal,
    "fraction": _numbers("fractions", "Fraction"),
    "date": _numbers("datetime", "date"),
    "time": _numbers("datetime", "time"),
    "datetime": _numbers("datetime", "datetime"),
    "timedelta": _numbers("datetime", "timedelta"),
    "builtin": BUILTINS.__getitem__,
    "special": {"...": ..., "NotImplemented": NotImplemented}.__getitem__,
}
"""What makes a value of the content of each tag; any exception refuses it."""
_BRACKETS = re.compile(r'[\[\]{}]|"(?:[^"\\]|\\.)*"')
_OF_LISTS = {
    "tuple",
    "dict",
    "set",
    "frozenset",
    "complex",
    "range",
    "counter",
    "ordered",
    "deque",
    "fraction",
}
_OF_LISTS |= {"date", "time", "datetime", "timedelta"}


class Codec:
    """Writes and reads messages. What is not plain goes to *refer*, and the tags of *more* are read by it.

    Args:
        refer: ``(value) -> {tag: content}`` for a value that is not plain; raises `NotPlainError` to refuse it.
        more: further tags, as in `BUILDERS`.
    """

    def __init__(
        self,
        refer: Callable[[Any], Any] | None = None,
        more: dict[str, Callable[[Any], Any]] | None = None,
    ):
        self._refer = refer
        self._builders = {**BUILDERS, **(more or {})}
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=self._constant, parse_float=self._float
        )

    def write(self, value: Any) -> str:
        """Write *value* as one line of ASCII.

        Raises:
            NotPlainError: a part of it is not plain, or it is too large, too deep or cyclic.
        """
        text = json.dumps(self.plain(value), separators=(",", ":"), allow_nan=False)
        if len(text) > SIZE:
            raise NotPlainError(f"a value of {len(text)} characters; at most {SIZE} are exchanged")
        return text

    def read(self, text: str) -> Any:
        """Return the value of a line that `write` wrote.

        Raises:
            MalformedError: it is no such line.
        """
        if len(text) > SIZE:
            raise MalformedError(f"{len(text)} characters; at most {SIZE} are read")
        if text.count("[") + text.count("{") > NESTED and _nested_too_deeply(text):
            raise MalformedError("nested too deeply")
        try:
            value, end = self._json.raw_decode(text)
            if text[end:].strip():
                raise MalformedError("more than one value")
        except RecursionError:
            raise MalformedError("nested too deeply") from None
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as e:
            raise MalformedError(f"{type(e).__name__}: {e}"[:200]) from None
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> Any:
        ((tag, content),) = pairs
        if tag in _OF_LISTS and type(content) is not list:
            raise ValueError(f"{tag} of a {type(content).__name__}")
        return self._builders[tag](content)

    def _constant(self, name: str) -> Any:
        raise ValueError(f"the constant {name}")

    def _float(self, text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError("a number out of range")
        return number

    def plain(self, value: Any, depth: int = DEPTH) -> Any:
        """Return *value* in a form that `json` writes.

        Raises:
            NotPlainError: as `write`.
        """
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return (
                value if -(1 << PLAIN_BITS) < value < 1 << PLAIN_BITS else {"int": _digits(value)}
            )
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if depth <= 0:
            raise NotPlainError(f"more than {DEPTH} nested containers, or a cycle")
        if kind is list:
            return [self.plain(item, depth - 1) for item in value]
        if kind in _SEQUENCES:
            return {_SEQUENCES[kind]: [self.plain(item, depth - 1) for item in value]}
        if kind in _MAPPINGS:
            pairs = [
                [self.plain(k, depth - 1), self.plain(v, depth - 1)] for k, v in dict.items(value)
            ]
            return {_MAPPINGS[kind]: pairs}
        if kind in _OTHERS:
            tag, content = _OTHERS[kind](value)
            return {tag: self.plain(content, depth - 1)}
        library = _LIBRARY.get((kind.__module__, kind.__qualname__))
        if (
            library is not None
            and getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
        ):
            tag, content = library(value)
            return {tag: self.plain(content, depth - 1)}
        if _NAMES.get(id(value)) is not None:
            return {"builtin": _NAMES[id(value)]}
        if self._refer is None:
            raise NotPlainError(f"a {kind.__name__} is not plain data")
        return self._refer(value)


def _nested_too_deeply(text: str) -> bool:
    """Return whether more than `NESTED` arrays and objects are open at one place."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > NESTED:
                return True
        elif match[0] in "]}":
            depth -= 1
    return False


def _digits(value: int) -> str:
    if value.bit_length() > BITS:
        raise NotPlainError(f"a number of {value.bit_length()} bits; at most {BITS} are exchanged")
    return hex(value)


def _naive(value: Any, *parts: Any) -> list[Any]:
    if value.tzinfo is not None or value.fold:
        raise NotPlainError("a time with a time zone is not exchanged")
    return list(parts)


_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {
    dict: "dict",
    defaultdict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
}
_OTHERS: dict[type, Callable[[Any], tuple[str, Any]]] = {
    complex: lambda v: ("complex", [v.real, v.imag]),
    bytes: lambda v: ("bytes", v.hex()),
    bytearray: lambda v: ("bytearray", v.hex()),
    range: lambda v: ("range", [v.start, v.stop, v.step]),
    deque: lambda v: ("deque", [list(v), v.maxlen]),
    type(...): lambda v: ("special", "..."),
    type(NotImplemented): lambda v: ("special", "NotImplemented"),
}
"""Tag and content of values that are written in one go, by type."""

_LIBRARY: dict[tuple[str, str], Callable[[Any], tuple[str, Any]]] = {
    ("decimal", "Decimal"): lambda v: ("decimal", str(v)),
    ("fractions", "Fraction"): lambda v: ("fraction", [v.numerator, v.denominator]),
    ("datetime", "date"): lambda v: ("date", [v.year, v.month, v.day]),
    ("datetime", "time"): lambda v: ("time", _naive(v, v.hour, v.minute, v.second, v.microsecond)),
    ("datetime", "datetime"): lambda v: (
        "datetime",
        _naive(v, v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond),
    ),
    ("datetime", "timedelta"): lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
}
"""The same for types of modules that are imported only where they are used, by module and name."""


def lift_digits() -> None:
    """Let whole numbers have any number of digits as text, as programs and tests may need: time and
    output have limits of their own.
    """
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)


def take_streams() -> tuple[BinaryIO, int]:
    """Take standard input and output for messages alone: what runs afterwards has neither, and no
    standard error.
    """
    source, sink = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    return source, sink


def write_all(sink: int, data: bytes) -> None:
    """Write *data* in as many calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
