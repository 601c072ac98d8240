"""Units of measurement after a number: which there are, and when two quantities are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction as F

# Kind, size relative to the first unit of its kind, names in the singular.
_TABLE = """
length 1 m meter metre
length 1/100 cm centimeter centimetre
length 1/1000 mm millimeter millimetre
length 1000 km kilometer kilometre
length 254/10000 in inch inche
length 3048/10000 ft foot feet
length 9144/10000 yd yard
length 1609344/1000 mi mile
mass 1 g gram
mass 1000 kg kilogram
mass 1/1000 mg milligram
mass 1000000 ton tonne
mass 45359237/100000 lb
mass 28349523125/1000000000 oz ounce
time 1 s sec second
time 60 min minute
time 3600 h hr hour
time 86400 day
time 604800 week
volume 1 L l liter litre
volume 1/1000 mL ml milliliter millilitre
money 1 dollar usd buck
money 1/100 cent
angle 1 degree deg
radians 1 rad radian
euro 1 euro eur
pound 1 pound gbp
yen 1 yen jpy
force 1 N newton
energy 1 J joule
energy 1000 kJ kilojoule
power 1 W watt
voltage 1 V volt
current 1 A amp ampere
frequency 1 Hz hertz
pressure 1 Pa pascal
resistance 1 ohm
temperature 1 K kelvin
amount 1 mol mole
"""
_VOLUME, _LENGTH, _ANGLE = "volume", "length", "angle"
_UNITS: Mapping[str, tuple[str, F]] = {
    name: (row.split()[0], F(row.split()[1]))
    for row in _TABLE.strip().split("\n")
    for name in row.split()[2:]
}
_SPEEDS = {
    "mph": ("mile", "hour"),
    "kph": ("km", "hour"),
    "kmh": ("km", "hour"),
    "fps": ("ft", "s"),
}
_SHORT = {"m", "s", "g", "h", "L", "l", "N", "J", "W", "V", "A", "K"}
_HEDGES = frozenset(
    "or and not is isn't no maybe perhaps either neither nor approximately about roughly if wrong "
    "incorrect correct than more less least most unless but almost nearly otherwise to from "
    "between the answer equals equal true false half halves double twice triple factorial minus "
    "plus times negative modulo mod choose divided multiplied zero one two three four five six "
    "seven eight nine ten".split()
)
"""Words that deny the number, or make another number of it: no unit has them."""
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(
    rf"(?i)(?<=[\d}})])\s*(?:\\text\{{\s*)?({'|'.join(_SCALES)})s?(?![A-Za-z])(?P<rest>[^{{}}]*)(?P<end>\}}?)"
)
_DEGREES = re.compile(
    r"(?i)\s*(?:\\text\{\s*)?\bdegrees?\s+(?:(c)(?:elsius)?|(f)(?:ahrenheit)?)\b\s*\}?$"
)
_COMPOUND_PART = re.compile(r"(\d{1,30}(?:\.\d{1,30})?) ?([A-Za-z]+)")
_COMPOUND = re.compile(rf"{_COMPOUND_PART.pattern}(?:\.?,? (?:and )?{_COMPOUND_PART.pattern})+\.?")
_SEXAGESIMAL = re.compile(
    r"(?P<degrees>\d{1,30})\^\{?\\circ\}?(?P<minutes>[0-5]?\d(?:\.\d{1,30})?)'"
    r"(?:(?P<seconds>[0-5]?\d(?:\.\d{1,30})?)(?:''|\"))?"
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_PLAIN = re.compile(
    r"(?<=[\d})])\s*([A-Za-z]{2,}(?:\s*(?:/|per)\s*[A-Za-z]+)?(?:\s*\^\{?[-\d]+\}?)?(?: "
    r"[A-Za-z]+){0,3})$"
)
_PLAIN_SHORT = re.compile(r"(?<=[\d})])\s+([A-Za-z](?:/[A-Za-z]+)?(?:\^\{?[-\d]+\}?)?)$")
_TRAILING = re.compile(
    r"((?:\s*(?:\\cdot|/|\\cdot\s*)?\s*\\text\{[^{}]*\}(?:\^\{?-?\d\}?)?)+|\s*\\frac\{\\text\{[^{}]*\}\}\{\\text\{[^{}]*\}(?:\^\{?\d\}?)?\})$"
)
_LEADING = re.compile(r"^([-+]?)\\text\{(dollar|euro|pound|yen)\}")


@dataclass(frozen=True)
class Quantity:
    """A number with what follows it.

    Attributes:
        value: the number, as normalised LaTeX.
        dimensions: exponent of each kind of unit; unknown words are kinds of their own.
        factor: of the unit, relative to the first unit of its kind.
        percent: whether a percent sign follows.
    """

    value: str
    dimensions: tuple[tuple[str, int], ...] = ()
    factor: F = F(1)
    percent: bool = False


def quantity(text: str) -> Quantity | None:
    """Read *text* as a number and its unit; ``None`` where words around the number are no unit,
    such as "5 or so".
    """
    text = _DEGREES.sub(lambda m: rf"^\circ\text{{{'C' if m[1] else 'F'}}}", text)
    # upright letters are units
    text = re.sub(r"(\\text\{[^{}]*\})/([A-Za-z])$", r"\1/\\text{\2}", text)
    leading = _LEADING.match(text)
    if leading:
        rest = leading[1] + text[leading.end() :].strip()
        dimensions, factor = _of_words([(leading[2], 1)])
        tail = quantity(rest)
        if tail is None or (tail.dimensions and tail.dimensions != dimensions):
            return None
        return Quantity(tail.value, dimensions, factor, tail.percent)
    scale = _SCALE.search(text)
    if scale:
        words = scale["rest"].strip()
        number = rf"({text[: scale.start()]})\cdot10^{{{_SCALES[scale[1].lower()]}}}"
        named = rf"\text{{{words}}}" if words else ""
        return quantity(number + (named if scale["end"] else words) + text[scale.end() :])
    if text.endswith(r"\%"):
        return Quantity(text[:-2].strip(), percent=True)
    degrees = re.fullmatch(r"(.*[\d})])\^\{?\\circ\}?(?:\s*(?:\\text\{)?([CFK])\}?)?", text)
    if degrees and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        kind = f"temperature-{degrees[2]}" if degrees[2] else _ANGLE
        return Quantity(degrees[1], ((kind, 1),))
    match = _TRAILING.search(text) or _PLAIN_SHORT.search(text) or _PLAIN.search(text)
    if match is None or not match.start():
        return Quantity(text)
    if match.re is _PLAIN and "\\" in match[1]:
        return Quantity(text)
    words = _words(match[1])
    if words is None:
        return None
    if not words:
        return Quantity(text[: match.start()].strip())
    if (
        match.re is not _TRAILING
        and not _known(words)
        and not re.search(r"\d\s+[A-Za-z]{3,}", text)
    ):
        return Quantity(text)
    dimensions, factor = _of_words(words)
    return Quantity(text[: match.start()].strip(), dimensions, factor)


def compound(text: str) -> str:
    """Return a quantity in several units, largest first ("5 feet 3 inches", ``22^\\circ30'``), in
    one; else empty.

    Each part but the first is less than one of the unit before it; else it is a list.
    """
    angle = _SEXAGESIMAL.fullmatch(text)
    if angle:
        degrees = F(angle["degrees"]) + F(angle["minutes"]) / 60 + F(angle["seconds"] or 0) / 3600
        return rf"\frac{{{degrees.numerator}}}{{{degrees.denominator}}}^{{\circ}}"
    plain = " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).split())
    if not _COMPOUND.fullmatch(plain):
        return ""
    total, before, kinds, name = F(0), F(0), set(), ""
    for number, word in _COMPOUND_PART.findall(plain):
        name = _singular(word)
        if name not in _UNITS:
            return ""
        kind, size = _UNITS[name]
        part = F(number) * size
        if before and part >= before:
            return ""
        total, before = total + part, size
        kinds.add(kind)
    if len(kinds) != 1:
        return ""
    total /= before
    return rf"\frac{{{total.numerator}}}{{{total.denominator}}}\text{{{name}}}"


def _words(text: str) -> list[tuple[str, int]] | None:
    """Return the words of a unit with their exponents; ``None`` where they are no unit."""
    plain = re.sub(r"\\frac\{(.*)\}\{(\\text\{[^{}]*\}.*)\}", r"\1/\2", text)
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1 ", plain).replace(r"\cdot", " ")
    plain = re.sub(r"\s+\^", "^", re.sub(r"\bper\b", "/", plain))
    if re.search(r"[\d](?<!\^\d)(?<!\^\{\d)(?<!-\d)|[<>=,;?]", plain):
        return None
    powers: list[tuple[str, int]] = []
    sign, power = 1, 1
    for token in re.finditer(r"/|([A-Za-z][A-Za-z'-]*)(?:\.)?\s*(?:\^\{?(-?\d)\}?)?", plain):
        if token[0] == "/":
            sign = -1
            continue
        word = token[1]
        if word.lower() in _HEDGES:
            return None
        if word.lower() in ("square", "sq", "squared", "cubic", "cubed"):
            exponent = 2 if word.lower().startswith("sq") else 3
            if word.lower().endswith("ed") and powers:
                powers[-1] = (powers[-1][0], powers[-1][1] * exponent)
            elif word.lower().endswith("ed"):
                return None  # of the number
            else:
                power = exponent
            continue
        exponent = sign * power * int(token[2] or 1)
        speed = _SPEEDS.get(word.lower())
        powers += [(speed[0], exponent), (speed[1], -exponent)] if speed else [(word, exponent)]
        power = 1
    return powers if len(powers) <= 6 else None


def _singular(word: str) -> str:
    if word in _SHORT or word in _UNITS:
        return word
    low = word.lower()
    for name in (
        low,
        low[:-1] if low.endswith("s") else low,
        low[:-2] if low.endswith("es") else low,
    ):
        if name in _UNITS and name not in _SHORT:
            return name
    return low[:-1] if low.endswith("s") and len(low) > 3 else low


def _known(words: list[tuple[str, int]]) -> bool:
    return all(_singular(word) in _UNITS for word, _ in words)


def _of_words(words: list[tuple[str, int]]) -> tuple[tuple[tuple[str, int], ...], F]:
    dimensions: dict[str, int] = {}
    factor = F(1)
    for word, power in words:
        name = _singular(word)
        kind, size = _UNITS.get(name, (f"'{name}'", F(1)))
        if kind == _VOLUME and power == 1:  # a litre is a cubic decimetre
            kind, size, power = _LENGTH, F(1, 10) if size == 1 else F(1, 100), 3
        dimensions[kind] = dimensions.get(kind, 0) + power
        factor *= size**power
    return tuple(sorted((k, v) for k, v in dimensions.items() if v)), factor


def same_dimensions(a: Quantity, b: Quantity) -> bool:
    """Return whether two units measure the same kind of thing; a name of counted things may be
    longer.
    """
    if a.dimensions == b.dimensions:
        return True
    named = [{k for k, _ in q.dimensions} for q in (a, b)]
    unknown = all(k.startswith("'") for names in named for k in names)
    powers = [dict(q.dimensions) for q in (a, b)]
    # square units are not cubic ones
    agree = all(powers[0][name] == powers[1][name] for name in named[0] & named[1])
    return unknown and agree and (named[0] <= named[1] or named[1] <= named[0])
