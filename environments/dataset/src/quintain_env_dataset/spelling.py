"""One spelling of answers: LaTeX and Markdown that only show a text another way are taken off."""

from __future__ import annotations

import re
import unicodedata

from quintain.evaluation import respelled, without_end

CURRENCY = "\u00a4"
"""Stands for the sign of the dollar, which is also a mark of LaTeX."""
LONGEST = 2000
"""Characters of an answer that is compared other than as text."""
_SIMPLE = re.compile(r"[A-Za-z0-9 .,:/+-]{0,60}[A-Za-z0-9]|")
_SHOWN = re.compile(
    r"\\(?:text|textbf|textit|textrm|texttt|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname)"
    r"\s{0,3}\{([^{}]*)\}"
)
_SPACING = re.compile(
    r"\\(?:[,;:! ]|q?quad(?![A-Za-z])|left(?![A-Za-z])|right(?![A-Za-z])|displaystyle(?![A-Za-z]))|~"
)
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s{0,3}(\d)\s{0,3}(\d)")
_DEGREE = re.compile(r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)|\\degree(?![A-Za-z])")
_MATH = re.compile(r"\$([^$]{1,400})\$(?!\d)")
_FORMULA = re.compile(r"[\\^=_{<>]")
_PRICE = re.compile(r"\$(?=\s?-?\.?\d)")
_EMPHASIS = "*_`"
_PAIRS = {'""', "''", "\u00ab\u00bb", "\u300c\u300d", "$$"}
_POWERS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-"
)
_VULGAR = re.compile("(?<![^\\W\\d_])[\u00bc-\u00be\u2150-\u215e]")
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")


def plain(text: str) -> str:
    r"""Return *text* in one spelling, without LaTeX and Markdown around it.

    >>> plain(r"**$8{,}000\text{ km}$**"), plain(r"\$40")
    ('8,000 km', '¤40')
    """
    if _SIMPLE.fullmatch(text):
        return " ".join(text.split())
    spelled = respelled(text).strip()
    for _ in range(3):  # bold within a box within quotes
        before = spelled
        spelled = _without_marks(spelled)
        if spelled == before:
            break
    if "\\" in spelled or "$" in spelled or "~" in spelled or "{" in spelled:
        spelled = _without_latex(spelled)
    raised = _RAISED.sub(lambda match: f"^{match[0].translate(_POWERS)}", spelled)
    written = _VULGAR.sub(_vulgar, raised)
    return " ".join(written.split())


def _vulgar(match: re.Match[str]) -> str:
    return " " + unicodedata.normalize("NFKC", match[0]).replace("\u2044", "/")


def _without_marks(text: str) -> str:
    bare = text.strip().lstrip(">").strip()
    for mark in _EMPHASIS:
        bare = _without_pair(bare, mark)
    if len(bare) > 2 and (bare[0] + bare[-1] in _PAIRS) and bare[0] not in bare[1:-1]:
        bare = bare[1:-1].strip()
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$")):
        if len(bare) > 4 and bare.startswith(opening) and bare.endswith(closing):
            bare = bare[2:-2].strip()
    if bare.startswith("\\boxed{") and bare.endswith("}"):  # in an answer tag, or a reference
        bare = bare[len("\\boxed{") : -1]
    return bare


def _without_pair(text: str, mark: str) -> str:
    """Return *text* without *mark*, once or several times, around it; or before it, where "**Answer:** 5" was
    cut, and behind what it ends with.
    """
    run = len(text) - len(text.lstrip(mark))
    if not run:
        return text
    rest = text[run:].strip()
    end = without_end(rest)
    if end.endswith(mark * run) and len(end) > run:
        return (end[:-run] + rest[len(end) :]).strip()
    # a single star may begin a list or a word
    return rest if run > 1 and mark == "*" and mark not in rest else text


def _without_latex(text: str) -> str:
    text = text.replace("{,}", ",").replace("\\$", CURRENCY).replace("\\%", "%")
    text = text.replace("\\&", "&").replace("\\#", "#").replace("\\_", "_")
    for _ in range(3):  # text within text
        text, count = _SHOWN.subn(r"\1", text)
        if not count:
            break
    text = _SPACING.sub(lambda match: "" if match[0] in ("\\!", "\\left", "\\right") else " ", text)
    text = re.sub(r"(?<=\d) (?=\d{3}(?!\d))", " ", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _FRACTION.sub(r"\\frac", text))
    text = _DEGREE.sub("\u00b0", text)
    text = _PRICE.sub(CURRENCY, _MATH.sub(_math, text))
    return text.replace("$", "")


def _math(match: re.Match[str]) -> str:
    """Return what stands between two signs of the dollar, where they are no prices."""
    short = len(match[1]) <= 20 and " " not in match[1].strip()
    return match[1] if short or _FORMULA.search(match[1]) else match[0]
