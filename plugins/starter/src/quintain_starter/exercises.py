"""What the exercises of the general starter are made of: words, sizes, wordings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase
from typing import Any

from quintain import Message, ToolCall, ToolSpec

NAMES = "Anna Ben Carl Dora Emma Finn Greta Hugo Ida Jack Kate Leo Mia Nina Omar Paul Rosa Sam Tom Vera".split()
COLOURS = "red blue green black white yellow brown pink grey orange".split()
THINGS = """
apple bag ball bed bell bird boat book bottle box bread bus cake card chair clock coat coin cup desk dog door egg fish
flower glass hat horse house key knife lamp leaf letter map milk moon mouse pen phone plate ring road room shirt shoe
spoon star stone table tree window cat car farm river lion bear cow duck
""".split()
PLACES = "kitchen garden school office park shop station market forest beach library hall".split()
VOWELS = "aeiou"
ORDINALS = "first second third fourth fifth sixth seventh eighth".split()


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A question and the reply to learn.

    Attributes:
        skill: name of the function that made it.
        facts: what an independent check of *answer* needs.
        tools: offered ones; *before* are then the turns between question and reply.
    """

    skill: str
    question: str
    answer: str
    facts: tuple[Any, ...] = ()
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    before: tuple[Message, ...] = ()
    call: ToolCall | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation; its last message is the reply to learn."""
        first = (Message("system", self.system),) if self.system else ()
        reply = Message("assistant", self.answer, calls=(self.call,) if self.call else ())
        return (*first, Message("user", self.question), *self.before, reply)


def worded(rng: Random, pattern: str, **values: object) -> str:
    """Choose one of each ``[this|that]`` of *pattern*, innermost first, then fill in *values*."""
    while (
        chosen := re.sub(r"\[([^][]*)\]", lambda m: rng.choice(m[1].split("|")), pattern)
    ) != pattern:
        pattern = chosen
    return pattern.format(**values)


def up_to(rng: Random, hard: float, low: int, high: int) -> int:
    """Return a size from *low* to at most *high*, which is reached at difficulty 1."""
    return rng.randint(low, max(low, round(low + (high - low) * hard)))


def a_word(rng: Random, hard: float, low: int = 2, high: int = 12) -> str:
    """Return a word: three times in four of random letters, since those teach letters rather than words."""
    if rng.random() < 0.25:
        return rng.choice(THINGS)
    return "".join(rng.choices(ascii_lowercase, k=up_to(rng, hard, low, high)))


def a_number(rng: Random, hard: float, digits: int = 3) -> int:
    return rng.randrange(10 ** up_to(rng, hard, 1, digits))


def some_items(rng: Random, hard: float, low: int = 2, high: int = 7) -> list[str]:
    """Draw distinct words, letters or numbers."""
    count = up_to(rng, hard, low, high)
    if rng.random() < 0.5:
        return rng.sample([str(n) for n in range(10 if hard < 0.3 else 100)], count)
    return rng.sample(rng.choice((THINGS, COLOURS, list(ascii_lowercase))), min(count, 8))


def joined(rng: Random, items: Sequence[object]) -> tuple[str, str]:
    """Return *items* as text, and the separator."""
    separator = rng.choice((", ", ", ", " ", ",", "; "))
    return separator.join(map(str, items)), separator


def made_by(skill: Callable[..., Exercise], question: str, answer: object, *facts: Any) -> Exercise:
    return Exercise(skill=skill.__name__, question=question, answer=str(answer), facts=facts)
