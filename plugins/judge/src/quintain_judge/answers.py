"""The final answer of a reply, and whether it is the reference without asking a judge."""

from __future__ import annotations

import re

from .gate import visible

_WHY = re.compile(r",?\s+(?:because|since|as shown|which is|and this)\b", re.IGNORECASE)
_MARKED = re.compile(
    r"(?:^|\n)\s*####\s*(.+)|<answer>(.*?)</answer>|(?:final answer|answer)\s*(?:is|:)\s*([^\n]+)",
    re.IGNORECASE | re.DOTALL,
)
LONGEST = 300
"""Characters of a final answer; a longer one is an explanation."""


def extracted(reply: str) -> str:
    """The final answer: the last box or mark, else the whole of a short reply, else its short last line; else empty.

    >>> extracted("Six times seven is 42. Answer: 42")
    '42'
    """
    boxed = _last_box(reply)
    marked = [next(filter(None, groups), "") for groups in _MARKED.findall(reply)]
    text = (boxed or (_WHY.split(marked[-1].split("\n")[0])[0] if marked else "") or reply).strip()
    if len(text) > LONGEST or "\n" in text:
        text = text.splitlines()[-1].strip()
    return text.strip(" *`$") if len(text) <= LONGEST else ""


def same(answer: str, reference: str) -> bool:
    """Equal up to case, blanks, articles and marks at the ends."""
    return _normal(answer) == _normal(reference)


def _normal(text: str) -> str:
    plain = re.sub(r"\b(?:a|an|the)\b", " ", visible(text).lower())
    return re.sub(r"\s+", " ", plain).strip(" .,;:!?\"'`*$")


def _last_box(text: str) -> str:
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth, begin = 0, start + len("\\boxed{")
    for i in range(begin - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if not depth:
            return text[begin:i]
    return ""
