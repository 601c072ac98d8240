"""Dates, times of day and versions: what has several numbers and is none."""

from __future__ import annotations

import re
from collections.abc import Hashable

_MONTHS = (
    "january february march april may june july august september october november december"
).split()
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace(
    "sep(?:tember)?", "sept?(?:ember)?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_WRITTEN = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:the )?{_DAY}(?: of)? (?P<month>{_MONTH})\.?(?:,? {_YEAR})?",
        rf"(?P<month>{_MONTH})\.? {_DAY}(?:,? {_YEAR})?",
        rf"(?P<month>{_MONTH})\.?,? {_YEAR}",
    )
)
_ISO = re.compile(
    r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[T ](\d{1,2}:\d{2}(?::\d{2})?)(?:\.0+)?(Z?))?"
)
_NUMERIC = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d{2})")
_TIME = re.compile(
    r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)? ?(a\.?m\.?|p\.?m\.?|o'clock)?(?: h)?", re.IGNORECASE
)
_MIXED = re.compile(r"\d.*[^\d]|[^\d].*\d", re.DOTALL)
"""What each date, time and version is: digits, and something else."""
_VERSION = re.compile(r"v?\d{1,9}(?:\.\d{1,9})+(?:[-+.]?[a-z][a-z0-9.]{0,20})?", re.IGNORECASE)

Order = str
"""Of day and month in a date such as 5/6/2018: ``day first``, ``month first``, or empty where the
file does not tell.
"""


def date_key(text: str, order: Order = "", *, versions: bool = True) -> Hashable | None:
    """Return what equal dates, times or versions share; ``None`` for other text, in `plain`
    spelling.

    A date whose order nothing tells equals the same numbers alone.

    Args:
        versions: read 3.10, which may be a number, as a version.

    >>> date_key("2024-01-15") == date_key("January 15th, 2024") == date_key("15.01.2024")
    True
    >>> date_key("10:30") == date_key("10:30 AM"), date_key("10:30 pm") == date_key("22:30")
    (True, True)
    """
    if len(text) > 60 or not _MIXED.search(text):
        return None
    bare = text.strip().rstrip(".")
    if (iso := _ISO.fullmatch(bare)) is not None:
        day = _date(int(iso[1]), int(iso[3]), int(iso[4]))
        return (day, _clock(iso[5])) if day and iso[5] else day
    if (numeric := _NUMERIC.fullmatch(bare)) is not None:
        return _numeric(numeric, order)
    for pattern in _WRITTEN:
        if (written := pattern.fullmatch(bare)) is not None:
            return _written(written)
    if (clock := _clock(text.strip())) is not None:
        return clock
    if _VERSION.fullmatch(bare) and (versions or bare.count(".") > 1):
        return ("version", bare.casefold().removeprefix("v"))
    return None


def order_of(text: str) -> Order:
    """Return the order of day and month that a date shows by a number above 12; else nothing."""
    numeric = _NUMERIC.fullmatch(text.strip())
    if numeric is None or max(int(numeric[1]), int(numeric[3])) <= 12:
        return ""
    return "day first" if int(numeric[1]) > 12 else "month first"


def _numeric(match: re.Match[str], order: Order) -> Hashable | None:
    first, second, year = int(match[1]), int(match[3]), match[4]
    known = order_of(match[0]) or order or ("day first" if match[2] == "." else "")
    if not known:
        return ("date", year, ("either", first, second))
    day, month = (first, second) if known == "day first" else (second, first)
    return _date(year if len(year) == 2 else int(year), month, day)


def _date(year: int | str, month: int, day: int) -> Hashable | None:
    return ("date", year, month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None


def _written(match: re.Match[str]) -> Hashable:
    parts = match.groupdict()
    month = 1 + [name[:3] for name in _MONTHS].index(parts["month"][:3].casefold())
    year = int(parts["year"]) if parts.get("year") else None
    return ("date", year, month, int(parts["day"]) if parts.get("day") else None)


def _clock(text: str) -> Hashable | None:
    match = _TIME.fullmatch(text)
    if match is None or not (match[2] or match[4]):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    half = (match[4] or "").casefold()[:1]
    if half in ("a", "p"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    # 90:30 is a time that something took
    return ("time", hour, minute, second) if minute < 60 and second < 60 else None
