"""Numbers with and without a unit, as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from .spelling import CURRENCY, LONGEST

_SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "bn": 10**9,
}
_UNITS = """
m meter meters metre metres
km kilometer kilometers kilometre kilometres
cm centimeter centimeters centimetre centimetres
mm millimeter millimeters millimetre millimetres
in inch inches
ft foot feet
yd yard yards
mi mile miles
g gram grams gramme grammes
kg kilogram kilograms kilo kilos
mg milligram milligrams
t tonne tonnes
lb lbs
oz ounce ounces
s sec secs second seconds
ms millisecond milliseconds
min mins minute minutes
h hr hrs hour hours
l L liter liters litre litres
ml mL milliliter milliliters millilitre millilitres
N newton newtons
J joule joules
kJ kilojoule kilojoules
W watt watts
kW kilowatt kilowatts
MW megawatt megawatts
mW milliwatt milliwatts
V volt volts
A amp amps ampere amperes
Hz hertz
Pa pascal pascals
K kelvin kelvins
mol mole moles
B byte bytes
bit bits
kB KB kilobyte kilobytes
MB megabyte megabytes
Mb megabit megabits
GB gigabyte gigabytes
kWh kilowatthour kilowatthours
km/h kmh kph
mph
m/s
m^2 m2 sqm
km^2 km2
cm^2 cm2
m^3 m3
cm^3 cm3 cc
% percent pct
\u00b0 degree degrees deg
\u00b0C celsius
\u00b0F fahrenheit
\u00a4 $ dollar dollars usd US$ bucks US\u00a4
\u00a2 cent cents ct
\u20ac euro euros eur
\u00a3 pound pounds gbp
\u00a5 yen jpy
\u20b9 rupee rupees inr
"""
_NAMES = {name: line.split()[0] for line in _UNITS.strip().split("\n") for name in line.split()}
_FOLDED: dict[str, str] = {}
for _name, _unit in _NAMES.items():
    if len(_name) > 1:  # K is no k
        # Mb and MB differ by case alone: no other case of them is known
        known = _FOLDED.setdefault(_name.casefold(), _unit)
        _FOLDED[_name.casefold()] = _unit if known == _unit else ""

_SIGNS = f"{CURRENCY}\u20ac\u00a3\u00a5\u20b9"
_POINT = (
    r"(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d{1,3}(?:,\d{2,3}){2,9}(?!,?\d)|\d{1,3}(?:[ ']\d{3})+(?!\d)"
    r"|\d{1,3}(?:_\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
)
_COMMA = (
    r"(?:\d{1,3}(?:\.\d{3})+(?!\.?\d)|\d{1,3}(?:[ ']\d{3})+(?!\d)|\d+)(?:,\d+)?|\d+\.\d+|[.,]\d+"
)
_EXPONENT = (
    r"(?:[eE][+-]?\d{1,3}(?!\w|\.\d)"
    r"|\s?(?:\*|x|\u00d7|\\times|\\cdot)\s?10\s?\^\s?(?:\{\s?[+-]?\d{1,3}\s?\}|[+-]?\d{1,3}))"
)
_FRACTION = r"\\frac\{\s?-?\d{1,40}\s?\}\{\s?\d{1,40}\s?\}"
_LETTERS = r"[^\s\d,;:!?()\[\]{}=<>\"|\u00a4]*"
_WORD = re.compile(
    r"\s?(?P<word>%|\u00b0[CF]?|[\u20ac\u00a3\u00a5\u20b9\u00a2\u00a4]"
    rf"|[^\W\d_\u00b0]{_LETTERS}(?:\^?-?\d(?!\d))?{_LETTERS})"
)
_UNIT_WORD = re.compile(r"[^\W\d_][^\d=<>+(){}\[\],;:\\]*(?:\^?-?\d)?")
_NO_UNITS = {"or", "and", "to", "not", "but", "versus", "vs", "plus", "minus", "times"}
_DIGIT = re.compile(r"\d")
_GOES_ON = re.compile(r"\s?(?:[/^*\u00b7\u00d7]|per\b|squared\b|cubed\b)")


def _pattern(number: str) -> re.Pattern[str]:
    return re.compile(
        r"(?<![\w.,:/^\\)\-{}])(?P<sign>^[+-]\s|[+-]?)"
        rf"(?P<before>US{CURRENCY}|[{_SIGNS}]|(?:USD|EUR|GBP)\s)?\s?(?P<minus>-?)"
        rf"(?:(?P<whole>\d{{1,40}})\s(?P<part>\d{{1,40}}/\d{{1,40}})"
        rf"|(?P<wholes>\d{{1,40}})?\s?(?P<frac>{_FRACTION})"
        rf"|10\s?\^\s?(?:\{{\s?(?P<power>[+-]?\d{{1,3}})\s?\}}|(?P<bare>[+-]?\d{{1,3}}))"
        rf"|(?P<top>{number})(?P<exponent>{_EXPONENT})?(?:\s?/\s?(?P<bottom>\d{{1,40}}))?)"
        rf"(?!\d|[.,:/^]\d|-\d|\s?\\[a-z]|\s?\^|/[.\d]|!(?!=))"
    )


_PATTERNS = {False: _pattern(_POINT), True: _pattern(_COMMA)}
"""By whether a comma is decimal."""


@dataclass(frozen=True)
class Amount:
    """A number and its place.

    Attributes:
        before: the unit that stands before it, as of a price; empty without one.
        behind: the text that follows.
    """

    value: Fraction
    before: str
    behind: str
    start: int
    end: int


def quantities(text: str, *, decimal_comma: bool = False) -> Iterator[Amount]:
    """Yield the numbers of *text*, in `plain` spelling."""
    for match in _PATTERNS[decimal_comma].finditer(text[:LONGEST]):
        value = _value(match, decimal_comma)
        if value is None:
            continue
        behind, end = text[match.end() :], match.end()
        scale = re.match(r"\s?([A-Za-z]{2,8})\b", behind)
        if scale is not None and scale[1].casefold() in _SCALES:
            value *= _SCALES[scale[1].casefold()]
            behind, end = behind[scale.end() :], end + scale.end()
        before = unit_of((match["before"] or "").strip())
        yield Amount(value, before, behind, match.start(), end)


def whole_quantity(text: str, *, decimal_comma: bool = False) -> tuple[Fraction, str] | None:
    """Return value and unit of a *text* that is one number, with or without a unit; else
    ``None``.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 40:
        return Fraction(int(text)), ""
    if not _DIGIT.search(text):
        return None
    found = next(quantities(text, decimal_comma=decimal_comma), None)
    if found is None or found.start:
        return None
    rest = found.behind.strip()
    if not rest:
        return found.value, found.before
    if found.before or not _may_be_unit(rest, attached=not found.behind[0].isspace()):
        return None
    return found.value, unit_of(rest)


def has_unit(quantity: Amount, unit: str) -> bool:
    """Return whether *unit* stands before or behind the number, and is not a part of another one."""
    if quantity.before:
        return quantity.before == unit
    position, words = 0, ""
    for _ in range(unit.count(" ") + 2):
        match = _WORD.match(quantity.behind, position)
        if match is None:
            return False
        words = f"{words} {match['word']}".strip()
        position = match.end()
        if unit in (unit_of(words), unit_of(words.rstrip(".-"))):
            return not _GOES_ON.match(quantity.behind, position)
    return False


def unit_of(text: str) -> str:
    """Return the one name of a unit: ``km`` for kilometres; other words without case and plural.

    The case counts where it tells two units apart: mW and MW.
    """
    words = " ".join(text.split())
    if words in _NAMES:
        return _NAMES[words]
    folded = words.casefold()
    if folded in _FOLDED:
        return _FOLDED[folded] or words
    singular = folded[:-1] if len(folded) > 3 and folded.endswith("s") else folded
    return re.sub(r"\s?([/*^\u00b7])\s?", r"\1", singular)


def _may_be_unit(text: str, *, attached: bool) -> bool:
    if text in _NAMES or text.casefold() in _FOLDED:
        return True
    words = text.split()
    if attached or len(words) > 3 or len(text) == 1 or words[0].casefold() in _NO_UNITS:
        return False
    return all(_UNIT_WORD.fullmatch(word) for word in words)


def _value(match: re.Match[str], decimal_comma: bool) -> Fraction | None:
    try:
        value = _absolute(match, decimal_comma)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return -value if "-" in match["sign"] + match["minus"] else value


def _absolute(match: re.Match[str], decimal_comma: bool) -> Fraction:
    if match["whole"]:
        return Fraction(match["whole"]) + Fraction(match["part"])
    if match["frac"]:
        top, bottom = re.findall(r"-?\d+", match["frac"])
        return Fraction(match["wholes"] or 0) + Fraction(int(top), int(bottom))
    power = match["power"] or match["bare"]
    if power:
        return Fraction(10) ** int(power)
    number = re.sub(r"[ '_]", "", match["top"])
    if not decimal_comma:
        number = number.replace(",", "")
    elif "," in number or re.fullmatch(r"\d{1,3}(?:\.\d{3})+", number):
        number = number.replace(".", "").replace(",", ".")
    value = Fraction(number)
    if match["exponent"]:
        value *= Fraction(10) ** int(re.findall(r"[+-]?\d+", match["exponent"])[-1])
    return value / int(match["bottom"]) if match["bottom"] else value
