"""Twelve small environments that are not among the exercises of the general starter, for
`starter`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from random import Random
from string import ascii_lowercase
from typing import Any

from quintain import Demonstration, Environment, Rollout, Task, reward

OTHERS = ("spell_backward", "letter_counting", "number_sorting", "chain_sum", "gcd")
"""Data sets of reasoning-gym, with its own settings and scores."""

SPLITS = {"train": (0, 4000), "dev": (4000, 4200), "test": (4200, 4400)}


def word(rng: Random, length: int) -> str:
    return "".join(rng.choices(ascii_lowercase, k=length))


def reverse(rng: Random, letters: int = 4) -> tuple[str, str]:
    """Return the example of the README."""
    text = word(rng, letters)
    return f"Write {text} backwards.", text[::-1]


def reverse6(rng: Random) -> tuple[str, str]:
    return reverse(rng, 6)


def reverse8(rng: Random) -> tuple[str, str]:
    return reverse(rng, 8)


def reverse10(rng: Random) -> tuple[str, str]:
    return reverse(rng, 10)


def reverse20(rng: Random) -> tuple[str, str]:
    return reverse(rng, 20)


def shifted(rng: Random) -> tuple[str, str]:
    text = word(rng, 4)
    moved = "".join(ascii_lowercase[(ascii_lowercase.index(c) + 1) % 26] for c in text)
    return f"Move each letter of {text} to the one that follows it in the alphabet.", moved


def merged(rng: Random) -> tuple[str, str]:
    one, other = word(rng, 4), word(rng, 4)
    return f"Shuffle {one} into {other}, one letter of each in turn.", "".join(
        map("".join, zip(one, other, strict=True))
    )


def middle(rng: Random) -> tuple[str, str]:
    numbers = rng.sample(range(100), 3)
    return f"Neither the top nor the bottom one of {numbers[0]}, {numbers[1]}, {numbers[2]}:", str(
        sorted(numbers)[1]
    )


def clock(rng: Random) -> tuple[str, str]:
    hour, minute, more = rng.randrange(24), rng.randrange(60), rng.randrange(1, 60)
    late = (60 * hour + minute + more) % 1440
    question = f"It is {hour:02}:{minute:02}. What does the clock show {more} minutes later?"
    return question, f"{late // 60:02}:{late % 60:02}"


def receipt(rng: Random) -> tuple[str, str]:
    counts, prices = rng.choices(range(1, 6), k=2), rng.choices(range(1, 10), k=2)
    total = sum(n * p for n, p in zip(counts, prices, strict=True))
    return f"tea {counts[0]} x {prices[0]}\nrolls {counts[1]} x {prices[1]}\nTo pay:", str(total)


OWN = {f.__name__: f for f in (reverse, reverse20, shifted, merged, middle, clock, receipt)}
LONGER = {f.__name__: f for f in (reverse6, reverse8, reverse10)}
"""Words of the lengths between the two above, measured when they are named."""


@cache
def dataset(name: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=SPLITS["test"][1], seed=0)


@dataclass(frozen=True, kw_only=True)
class Question(Task):
    """The question *index* of a kind."""

    kind: str
    index: int


@reward(range=(0, 1))
def right(rollout: Rollout[Question, None]) -> float:
    """Whether the reply is the answer; for reasoning-gym, whether its own score is 1."""
    reply, task = rollout.reply.strip(), rollout.task
    if task.kind in OTHERS:
        return float(dataset(task.kind).score_answer(reply, dataset(task.kind)[task.index]) == 1)
    return float(reply == task.answer)


class Small(Environment[Question, None]):
    """Questions of one *kind*, with the answer alone as demonstration."""

    reward = right
    kind: str = "reverse"

    def tasks(self, split: str) -> Iterable[Question]:
        for index in range(*SPLITS[split]):
            if self.kind in OTHERS:
                entry = dataset(self.kind)[index]
                prompt, answer = entry["question"], entry["answer"]
            else:
                prompt, answer = (OWN | LONGER)[self.kind](Random(f"{self.kind} {index}"))
            yield Question(prompt=prompt, answer=answer, kind=self.kind, index=index)

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=task.answer)
