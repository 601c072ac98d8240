"""The answer of a reply: equal answers vote together in cons@k, others overlap by words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_MARKED = (
    re.compile(r"<answer>(.*?)</answer>", re.DOTALL),
    re.compile(r"^\s*####\s*(.+)$", re.MULTILINE),
)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def final_answer(reply: str) -> str | None:
    r"""Return the answer that a reply ends in, for voting; ``None`` where it is empty.

    The last ``\boxed{}``, else the last ``<answer>`` tag, else the last line after ``####``; else
    the last number of the last line, or that line. Case, spaces, thousands separators and trailing
    zeros do not count.
    """
    marked = _boxed(reply)
    if marked is None:
        marked = next((matches[-1] for p in _MARKED if (matches := p.findall(reply))), None)
    if marked is not None:
        return _normal(marked)
    line = next((x for x in reversed(reply.splitlines()) if x.strip()), "")
    numbers = _NUMBER.findall(line)
    return _normal(numbers[-1] if numbers else line)


def word_f1(words: Iterable[str], expected: Iterable[str]) -> float:
    """Compare two texts by the harmonic mean of precision and recall of their words, counted with
    repetition; 0 where both are empty.
    """
    reply_words, wanted = Counter(words), Counter(expected)
    return 2 * (reply_words & wanted).total() / max((reply_words + wanted).total(), 1)


def _boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{}`` whose braces balance."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth = 0
        for i in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : i]
        start = text.rfind("\\boxed{", 0, start)
    return None


def _normal(answer: str) -> str | None:
    text = " ".join(answer.split()).strip("$ .").casefold()
    if re.fullmatch(r"-?\d[\d,]*(\.\d+)?", text):
        text = text.replace(",", "")
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text or None
