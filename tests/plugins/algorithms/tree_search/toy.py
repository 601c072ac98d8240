"""A policy over lines, without a model: each line is a letter, three lines are an answer. Searches
over it are small enough to be enumerated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from quintain import Message, Sampling
from quintain_algorithms.tree_search import Partial, StepRule
from quintain_authoring.scripted import ScriptedEngine

LETTERS = "abc"
LINES = 3
WORTH = {
    "a": 0.4, "b": 0.6, "c": 0.5,
    "aa": 0.9, "ab": 0.1, "ac": 0.2, "ba": 0.7, "bb": 0.65, "bc": 0.3, "ca": 0.55, "cb": 0.5,
    "cc": 0.45,
}  # fmt: skip
"""What a value model might say of answers with less than three lines."""


def line(messages: Sequence[Message], rng: Random) -> str:
    """The rest of an answer after what is there: always whole, the engine cuts it at a stop."""
    begun = messages[-1].content if messages[-1].role == "assistant" else ""
    return "".join(f"{rng.choice(LETTERS)}\n" for _ in range(LINES - begun.count("\n")))


def letters(partial: Partial) -> str:
    """The letters of an answer."""
    text = bytes(i for i in partial.ids if i < 256).decode()
    return text.replace("\n", "")


def worth_of(partial: Partial) -> float:
    """The value of the toy: a table, and for whole answers the share of the letter c."""
    text = letters(partial)
    return WORTH.get(text, text.count("c") / LINES + text.count("b") / 100)


def policy() -> ScriptedEngine:
    return ScriptedEngine(replies=line)


def prompt() -> tuple[int, ...]:
    tokenizer = policy().tokenizer
    return tuple(tokenizer.encode(tokenizer.render([Message("user", "letters")])))


SAMPLING = Sampling(seed=11, max_tokens=64)


class ByTable:
    """Mixed into a search: values from the table of the toy."""

    async def worth(self, prompt: tuple[int, ...], partials: Sequence[Partial]) -> list[float]:
        return [worth_of(partial) for partial in partials]


def drawn(partial: Partial, *path: object, seed: int = 11, whole: bool = False) -> Partial:
    """The step that the policy draws after *partial* by seed and path, without a search."""
    from quintain.types import derived_seed

    steps = StepRule(by="answer" if whole else "lines")
    sampling = steps.sampling(Sampling(seed=derived_seed(seed, *path), max_tokens=64))
    new = asyncio.run(policy().sample((*prompt(), *partial.ids), sampling))
    return Partial(
        ids=(*partial.ids, *new.ids),
        logps=(*partial.logps, *new.logps),
        versions=(*partial.versions, *new.versions),
        finish=None if new.stop == "\n" else new.finish,
        stop=None if new.stop == "\n" else new.stop,
    )
