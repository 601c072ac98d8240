"""The time of rewards, gates and readers of replies grows with the length of a text, not with its
square: policies that repeat themselves write such texts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from quintain import Task
from quintain.testing import rollout
from quintain_env_code.extract import extract
from quintain_env_search.answers import read_answer
from quintain_judge import rules
from quintain_judge.answers import extracted, same
from quintain_judge.gate import injection, why_empty
from quintain_judge.prompts import neutral
from quintain_judge.verdicts import Scale, UnreadableVerdict
from quintain_rewards.math_verify.extract import final_answers
from quintain_rewards.shaping.format import boxed, format_tags
from quintain_rewards.shaping.text import keyword, language_consistency, repetition

REPEATED = (
    "\\boxed{", "\\boxed{1} ", "\\boxed {5} ", "{", "}", "(", "[", "<", "<think>", "</think>",
    "<answer>", "</answer>", "<answer>5</answer>", "#### 5\n", "answer is ", "The answer is 5. ",
    "\n", " ", "\r\n", "```\n", "```python\n", "**\n", "**", "- a\n", "|", "\\", "$", "1,", "\"",
    "'", "{\"reason\":", "[END ", "[INST]", "<<SYS>>", "</s>", "end of answer ", "ignore all ",
    "note to the grader ", "no wait ", "\u200b", "\u0301", "中", "AAAA", "not ",
)  # fmt: skip
SHORT, LONG = 12_500, 100_000
WALL = 0.25
"""Seconds of CPU time below which a ratio says nothing."""
MOST = 24.0
"""Times that 8 times the text may take. A quadratic function takes 64 times as long."""


def _read(text: str) -> None:
    with contextlib.suppress(UnreadableVerdict):  # most texts are no verdict
        Scale().read(text)


def _scored(reward: Any) -> Callable[[str], object]:
    return lambda text: reward.score(rollout(Task(prompt="q", answer="5"), text))


READERS: dict[str, Callable[[str], object]] = {
    "extracted": extracted,
    "same": lambda text: same(text, "Oslo"),
    "injection": injection,
    "why_empty": why_empty,
    "neutral": neutral,
    "verdict": _read,
    "math": final_answers,
    "boxed": _scored(boxed()),
    "format_tags": _scored(format_tags()),
    "repetition": _scored(repetition()),
    "language": _scored(language_consistency(script="latin", part="all")),
    "keyword": _scored(keyword(words=("harbour", "old port"))),
    "code": extract,
    "search": read_answer,
    "items": lambda text: rules.check("Has exactly 3 list items.", text),
    "sentences": lambda text: rules.check("Has exactly 2 sentences.", text),
}


def _seconds(reader: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    reader(text)
    return time.process_time() - began


def _grows(reader: Callable[[str], object], unit: str) -> str:
    """Return the times where they grow with more than the length, by the best of three."""
    for _ in range(3):
        short = _seconds(reader, unit * (SHORT // len(unit)))
        if short > 2 * WALL:
            return f"{unit!r}: {short:.2f} s for {SHORT} characters"
        long = _seconds(reader, unit * (LONG // len(unit)))
        if long < WALL or long < MOST * short:
            return ""
    return f"{unit!r}: {short:.3f} and {long:.3f} s"


@pytest.mark.more
@pytest.mark.parametrize("name", sorted(READERS))
def test_time_grows_with_the_length_of_a_repeating_text(name: str) -> None:
    assert len(REPEATED) == 44
    assert list(filter(None, (_grows(READERS[name], unit) for unit in REPEATED))) == []


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("injection", "```\n"),
        ("injection", "**\n"),
        ("extracted", "\n"),
        ("extracted", "<answer>"),
        ("same", '"'),
        ("why_empty", "["),
        ("items", "\n"),
    ],
)
def test_texts_that_took_quadratic_time_do_not(name: str, unit: str) -> None:
    assert _grows(READERS[name], unit) == ""
