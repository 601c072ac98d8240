"""Controls of environments whose tasks store the right answer: right ones in the usual forms, and
wrong ones that share something with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..interfaces.environment import control
from ..types.task import Message

_PIECE = re.compile(r"\\[A-Za-z]+|\d|[^\W\d_]")  # a command of LaTeX stays
_DIGITS = re.compile(r"\d+")


class WrongAnswers:
    """Controls for an `Environment` that reply with a wrong answer; each must score nothing.

    Place it before `Environment` among the base classes.
    """

    def right_answer(self, task: Any) -> str:
        """Return the text of the right answer."""
        return str(task.answer)

    def stating(self, answer: str) -> str:
        """Return a reply that states *answer* in the form that the environment asks for."""
        return in_box(answer)

    @control(scores="min")
    def same_last_number(self, task: Any, messages: Sequence[Message]) -> str:
        """State a wrong answer that shares the last number of the right one."""
        return self.stating(sharing_the_last_number(self.right_answer(task)))

    @control(scores="min")
    def same_first_word(self, task: Any, messages: Sequence[Message]) -> str:
        """State a wrong answer that begins with the first word of the right one."""
        return self.stating(sharing_the_first_word(self.right_answer(task)))

    @control(scores="min")
    def same_length(self, task: Any, messages: Sequence[Message]) -> str:
        """State a wrong answer that is as long as the right one."""
        return self.stating(other_text(self.right_answer(task)))


class AnswerControls(WrongAnswers):
    """These, and controls that reply with the right answer in a box and in a sentence; each of the
    two must have the full reward.
    """

    @control(scores="max")
    def in_a_box(self, task: Any, messages: Sequence[Message]) -> str:
        r"""State the right answer within ``\\boxed{}``."""
        return in_box(self.right_answer(task))

    @control(scores="max")
    def in_a_sentence(self, task: Any, messages: Sequence[Message]) -> str:
        """State the right answer as in "The answer is 5."."""
        return f"The answer is {self.right_answer(task)}."


def in_box(answer: str) -> str:
    r"""Return *answer* within ``\boxed{}``; in an ``<answer>`` tag where its braces do not balance."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", answer):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth < 0:
            break
    return f"\\boxed{{{answer}}}" if not depth else f"<answer>{answer}</answer>"


def other_text(answer: str) -> str:
    r"""Return a text of the same length with other letters and digits; ``1`` for what has neither,
    such as a command of LaTeX.

    >>> other_text("Apollo 11"), other_text("2\\sqrt{3}")
    ('Bqpmmp 26', '3\\sqrt{8}')
    """
    changed = _changed(answer)
    return changed if changed != answer else "1"


def sharing_the_last_number(answer: str) -> str:
    """Return a wrong answer with the last number of *answer*; without one, `other_text`.

    >>> sharing_the_last_number("Apollo 11"), sharing_the_last_number("5 km")
    ('Bqpmmp 11', '5 ln')
    >>> sharing_the_last_number("42"), sharing_the_last_number("-3"), sharing_the_last_number("0")
    ('-42', '3', '10')
    """
    runs = list(_DIGITS.finditer(answer))
    if not runs:
        return other_text(answer)
    before, number, after = answer[: runs[-1].start()], runs[-1][0], answer[runs[-1].end() :]
    changed = _changed(before) + number + _changed(after)
    if changed != answer:
        return changed
    either = "\\pm" in before or "\u00b1" in before
    if not int(number) or either:  # which a sign does not change
        return f"{before}1{number}{after}"
    negative = [sign for sign in "-\u2212\u2013" if sign in before]
    return answer.replace(negative[0], "", 1) if negative else f"-{answer}"


def sharing_the_first_word(answer: str) -> str:
    """Return a wrong answer that begins with the first word of *answer*.

    >>> sharing_the_first_word("Apollo 11"), sharing_the_first_word("Paris")
    ('Apollo 26', 'Paris or Qbsjt')
    """
    first, blank, rest = answer.strip().partition(" ")
    changed = _changed(rest)
    if changed != rest:
        return f"{first}{blank}{changed}"
    return f"{answer} or {other_text(answer)}"


def _changed(text: str) -> str:
    seen = 0

    def other(match: re.Match[str]) -> str:
        nonlocal seen
        piece = match[0]
        if piece.isdecimal():
            seen += 1
            # by two steps in turn, with which no fraction of two digits keeps its value
            return str(1 + (int(piece) + 4 * ((seen - 1) % 2)) % 9)
        if len(piece) > 1:
            return piece
        if piece.isascii():
            first = "a" if piece.islower() else "A"
            return chr(ord(first) + (ord(piece) - ord(first) + 1) % 26)
        return "x"

    return _PIECE.sub(other, text)
