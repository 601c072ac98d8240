"""Single expressions: LaTeX to sympy by Math-Verify's parser, and their equality. Runs in workers
only.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from itertools import islice, product
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import ConversionConfig  # type: ignore[import-untyped]
from math_verify import verify  # type: ignore[import-untyped]

# it warns that its own clock is off, which is the point
logging.getLogger("math_verify").setLevel(logging.ERROR)

DIGITS = 40
"""Decimal digits to which two numbers must agree."""

_POINTS = ((17, 10), (29, 41), (-23, 13), (-7, 19), (311, 97))
"""Rationals at which expressions with variables are compared: above and below 1, and negative."""

_SIZES = ((17, 10), (3, 11), (311, 97), (7, 19), (5, 6), (41, 29), (13, 2))
"""Sizes of the variables where branches differ, below and above 1, so that roots of differences and
inverse functions are defined at some of them."""
MOST_SIGNS = 32
"""Choices of signs for the variables that are tried with each size."""

_CASED = ConversionConfig(lowercase_symbols=False)
"""``A`` and ``a`` are two variables, as in "triangle with sides a and area A"."""

_WORD_INDEX = re.compile(r"(?<=[A-Za-z'])_\{[A-Za-z0-9]+\}")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)")


class Unreadable(ValueError):
    """The text is no expression."""


@lru_cache(maxsize=4096)
def expression(text: str) -> Any:
    """Return the sympy expression of normalised LaTeX, with exact decimals.

    Raises:
        Unreadable: it does not parse, or holds words.
    """
    if (
        r"\text" in text
        or not text
        or "?" in text
        or re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", _WORD_INDEX.sub("", text))
    ):
        raise Unreadable(text)
    source = _DECIMAL.sub(_exact, text)
    # the parser drops primes
    source = re.sub(r"([A-Za-z])('+)", lambda m: f"{m[1]}_{{{'p' * len(m[2])}}}", source)
    # it takes e and I for constants, whatever their index
    source = re.sub(
        r"(?<![\\A-Za-z])([EeI])_(?:\{([A-Za-z0-9,]+)\}|(\w))", _constant_letter, source
    )
    source = re.sub(r"(\d+|\))\^\{?\\circ\}?", r"\1\\cdot\\frac{\\pi}{180}", source)
    # the parser takes 2(3) for a mixed number
    source = re.sub(r"(?<![\w^.])(\d+|\)|\\pi)\(", r"\1\\cdot(", source)
    source = re.sub(r"\\cdot\s*\\cdot", r"\\cdot", source)
    try:
        value = latex2sympy(
            source,
            is_real=True,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_CASED,
        )
    except (RecursionError, MemoryError):  # of the process, not of the text
        raise
    except Exception as e:  # whatever the parser fails on is no expression
        raise Unreadable(f"{text[:80]}: {type(e).__name__}") from e
    if not isinstance(value, (sympy.Basic, sympy.MatrixBase)) or isinstance(value, sympy.Set):
        raise Unreadable(text)
    imaginary = [s for s in value.free_symbols if s.name == "i"]
    return value.subs(dict.fromkeys(imaginary, sympy.I)) if imaginary else value


def _constant_letter(match: re.Match[str]) -> str:
    return rf"\Upsilon_{{{match[1]}{match[2] or match[3]}}}"


def _exact(match: re.Match[str]) -> str:
    digits, places = match[1] + match[2], len(match[2])
    return rf"\frac{{{int(digits)}}}{{{10**places}}}"


def equal(gold: str, answer: str) -> bool:
    """Return whether two normalised expressions have the same value, for every value of their
    variables.

    Raises:
        Unreadable: one of them is no expression.
    """
    return equal_values(expression(gold), expression(answer))


def equal_values(a: Any, b: Any) -> bool:
    """Return whether two sympy expressions are equal, by exact structure or by value to 40
    digits.
    """
    if isinstance(a, sympy.MatrixBase) or isinstance(b, sympy.MatrixBase):
        if (
            not (isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase))
            or a.shape != b.shape
        ):
            return False
        return all(equal_values(x, y) for x, y in zip(a.flat(), b.flat(), strict=True))
    # symbols are, too
    if any(isinstance(x, sympy.logic.boolalg.Boolean) and not x.is_Symbol for x in (a, b)):
        return bool(a == b)
    undefined = (sympy.nan, sympy.zoo)
    a, b = _evaluated(a), _evaluated(b)
    if a in undefined or b in undefined:
        return False
    if a == b:
        return True
    if any(x in (sympy.oo, -sympy.oo) for x in (a, b)):
        return False
    if not (a.free_symbols or b.free_symbols):
        return bool(_close(a, b))
    return _equal_at_points(a, b)


def _evaluated(x: Any) -> Any:
    """Return *x* with sums, integrals and unevaluated products carried out, so that 1/0 shows
    itself.
    """
    return x.doit() if hasattr(x, "doit") else x


def _close(a: Any, b: Any) -> bool | None:
    """Return whether two numbers agree to `DIGITS`; ``None`` where one has no value."""
    if a.is_Rational and b.is_Rational:
        return bool(a == b)
    x, y = (v.evalf(DIGITS + 15, maxn=400) for v in (a, b))
    if not (x.is_number and y.is_number) or any(
        v.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo) for v in (x, y)
    ):
        return None
    size = max(abs(x), abs(y))
    if size == 0:
        return True
    try:
        # a difference that cancels is evaluated to as many digits as `maxn`, and never to 0 itself
        if 0 in (x, y):
            return bool(size < sympy.Float(10) ** -200)
        return bool(abs(x - y) <= size * sympy.Float(10) ** -DIGITS)
    except TypeError:
        return None


def _equal_at_points(a: Any, b: Any) -> bool:
    """Compare at `_POINTS`. Values that differ where one side is not defined as a real number, by
    another branch of a root or a logarithm, say nothing: then the points decide where both are.
    """
    symbols = sorted(a.free_symbols | b.free_symbols, key=lambda s: str(s.name))
    agreed = 0
    branches = False
    for k in range(len(_POINTS)):
        point = {
            s: sympy.Rational(*_POINTS[(k + 2 * i) % 5]) + sympy.Rational(i, 7)
            for i, s in enumerate(symbols)
        }
        close = _close(a.subs(point), b.subs(point))
        if close is False:
            if _real(a, point) and _real(b, point):
                return False
            branches = True
        agreed += close is True
    if branches:
        return _equal_where_real(a, b, symbols)
    if agreed >= 2:
        return True
    return bool(verify([a], [b], float_rounding=20, numeric_precision=30, timeout_seconds=None))


def _equal_where_real(a: Any, b: Any, symbols: list[Any]) -> bool:
    """Return whether *a* and *b* agree at all points of a grid of both signs where both are defined
    as real numbers, and at three at least.
    """
    a, b = _with_odd_roots(a), _with_odd_roots(b)
    agreed = 0
    for signs in islice(product((1, -1), repeat=len(symbols)), MOST_SIGNS):
        for shift in range(len(_SIZES)):
            point = {
                s: sign * sympy.Rational(*_SIZES[(shift + 2 * i) % len(_SIZES)])
                for i, (s, sign) in enumerate(zip(symbols, signs, strict=True))
            }
            if not (_real(a, point) and _real(b, point)):
                continue
            close = _close(a.subs(point), b.subs(point))
            if close is False:
                return False
            agreed += close is True
    return agreed >= 3


def _with_odd_roots(x: Any) -> Any:
    """Return *x* with the odd roots of real numbers, which negative numbers have, too."""
    return x.replace(
        lambda part: part.is_Pow and part.exp.is_Rational and part.exp.q > 1 and part.exp.q % 2,
        lambda part: (
            (sympy.sign(part.base) * abs(part.base) ** sympy.Rational(1, part.exp.q)) ** part.exp.p
        ),
    )


def _real(x: Any, point: dict[Any, Any]) -> bool:
    """Return whether each root, power, logarithm and inverse function of *x* is one of real numbers
    at *point*.
    """
    for part in sympy.preorder_traversal(x):
        real = True
        if part.is_Pow and not part.exp.is_integer:
            real = part.exp.subs(point).is_integer or _between(part.base, point, 0)
        elif isinstance(part, sympy.log):
            argument = part.args[0]
            real = _between(argument, point, 0) and not argument.subs(point).is_zero
        elif isinstance(part, (sympy.asin, sympy.acos)):
            real = _between(part.args[0], point, -1, 1)
        if not real:
            return False
    return True


def _between(x: Any, point: dict[Any, Any], least: int, most: Any = sympy.oo) -> bool:
    """Return whether the value of *x* at *point* is real and in a range."""
    value = x.subs(point)
    return bool(value.is_extended_real and least <= value and value <= most)


def proportional(a: Any, b: Any, *, positive: bool) -> bool:
    """Return whether ``a = c b`` with a constant c that is not 0 (with *positive*, above 0), as
    equations may differ.
    """
    ratio = _evaluated(a) / _evaluated(b)
    symbols = sorted(a.free_symbols | b.free_symbols, key=lambda s: str(s.name))
    if a.free_symbols != b.free_symbols or not symbols:
        return False
    values = []
    for k in range(len(_POINTS)):
        point = {
            s: sympy.Rational(*_POINTS[(k + 2 * i) % 5]) + sympy.Rational(i, 7)
            for i, s in enumerate(symbols)
        }
        value = ratio.subs(point)
        if value.is_number and value.is_finite and value != 0:
            values.append(value)
    if len(values) < 3 or not all(_close(values[0], v) for v in values[1:]):
        return False
    return not positive or bool(values[0].evalf(15) > 0)
