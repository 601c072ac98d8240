"""Times of day and dates: what is written with digits and words, and is no quantity."""

from __future__ import annotations

import re

_FULL = (
    "january february march april may june july august september october november december".split()
)
_MONTHS = {name: 1 + i for i, full in enumerate(_FULL) for name in (full, full[:3])} | {"sept": 9}
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?(?::(\d\d))? ?([ap])\.? ?m\.?")
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATE = re.compile(
    rf"(?:(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})|(?P<first>\d{{1,2}}) (?P<second>{_MONTH})\.?)"
    r"(?:,? (?P<year>\d{4}))?"
)


def clock(text: str) -> tuple[int, ...] | None:
    """Return the time of day on a clock of 24 hours; ``None`` for other text, and from 1:00 to
    12:59, which are two times.
    """
    time = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", text)
    if time is None or 1 <= int(time[1]) <= 12:
        return None
    return int(time[1]), int(time[2]), int(time[3] or 0)


def moment(text: str) -> tuple[int, ...] | None:
    """Return the time of day or the date that normalised *text* names; ``None`` for other text.

    >>> moment("5:30\\\\text{PM}"), moment("March 5")
    ((17, 30, 0), (0, 3, 5))
    """
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).lower()
    plain = (
        " ".join(re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", plain).split())
        .rstrip(".")
        .replace(" ,", ",")
    )
    time = _TIME.fullmatch(plain)
    if time and 1 <= int(time[1]) <= 12:
        return int(time[1]) % 12 + 12 * (time[4] == "p"), int(time[2] or 0), int(time[3] or 0)
    date = _DATE.fullmatch(plain)
    if date:
        return (
            int(date["year"] or 0),
            _MONTHS[date["month"] or date["second"]],
            int(date["day"] or date["first"]),
        )
    return None
