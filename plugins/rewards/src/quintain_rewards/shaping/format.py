"""Rewards on format."""

from __future__ import annotations

import re
from typing import Any

from quintain import Rollout, Score, reward

_TAG = re.compile(r"</?(?:think|answer)>")
_TEMPLATE = ("<think>", "</think>", "<answer>", "</answer>")


def keeps_template(text: str) -> bool:
    """Return whether *text* is ``<think>...</think> <answer>...</answer>``: each tag once, in
    order, only white space around.

    The template of R1-Zero (DeepSeek-AI 2025, arXiv:2501.12948, table 1).
    """
    tags = list(_TAG.finditer(text))
    if tuple(t.group() for t in tags) != _TEMPLATE:
        return False
    outside = (
        text[: tags[0].start()] + text[tags[1].end() : tags[2].start()] + text[tags[3].end() :]
    )
    return not outside.strip()


@reward(range=(0, 1))
def format_tags(rollout: Rollout[Any, Any]) -> Score:
    """1 where the last turn keeps the think/answer template, else 0.

    Reads the text as sampled, before reasoning was split off.
    """
    text = next((t.text for t in reversed(rollout.turns) if not t.player), "")
    good = keeps_template(text)
    return Score(
        value=float(good),
        reason="" if good else "expected <think>...</think> <answer>...</answer> and nothing else",
    )


_BOX = re.compile(r"\\boxed\s*\{")
# what a box shows nothing of
_BLANK = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u3164\ufe00-\ufe0f\ufeff\uffa0]|"
    r"[{}\s~$]|\\(?:[,;:! ]|q?quad(?![A-Za-z])|(?:text|mathrm)(?=\{))"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text, not a delimiter


@reward(range=(0, 1))
def boxed(rollout: Rollout[Any, Any]) -> Score:
    r"""1 where the last reply has exactly one ``\boxed{}``, closed and not empty, else 0.

    Bounds: 0 and 1. More than one box scores 0, because a verifier may accept any of them. Boxes in
    the reasoning do not count. Source: the answer format of MATH (Hendrycks et al. 2021,
    arXiv:2103.03874).
    """
    boxes = list(_BOX.finditer(rollout.reply))
    if len(boxes) != 1:
        return Score(reason=f"{len(boxes)} boxes; expected 1")
    inside = rollout.reply[boxes[0].end() :]
    depth = 1
    for brace in _BRACE.finditer(inside):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if not depth:
            full = bool(_BLANK.sub("", inside[: brace.start()]))
            return Score(value=float(full), reason="" if full else "the box is empty")
    return Score(reason="the box is not closed")
