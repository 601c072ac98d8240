"""Generated programming tasks: short functions, described step by step, with hidden tests that are new at each visit.

A task is its specification. Its tests are drawn from it when a solution is graded, by a seed that differs from visit to
visit: other inputs, none of them those of the examples in the prompt, and chosen so that each common mistake and each
similar function fails at least one. So neither a table of known answers nor an enumeration of cases passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from quintain import Demonstration, Task
from quintain.errors import UsageError, did_you_mean

from .functions import KINDS, Call, Function, Slips, Specification

CASES = 10
"""Hidden calls of one grading, at least."""
POOL = 64
"""Arguments that the hidden calls are chosen from."""
SHARE = 10
"""One problem in this many is ``dev``, one is ``test``, the others are ``train``."""
PATIENCE = 200
"""Draws for each task of a finite split before it counts as exhausted."""
TRIED = 20
"""Arguments that show whether a function says anything: at most half of them may have one result."""
NAMES = ("f", "g", "h")
RENAMED = {"x": ("x", "a", "p"), "y": ("y", "b", "q"), "n": ("n", "m", "k"), "s": ("s", "w", "z")}


def calls_of(specification: Specification, seed: str, known: tuple[Call, ...] = ()) -> tuple[Call, ...]:
    """Hidden calls, `CASES` at least: the same for the same *seed*, and none with the arguments of *known* ones.

    Each function with a slip and each neighbour that differs from the specification on any of `POOL` random arguments
    gives another result on at least one of the calls.
    """
    rng = Random(seed)
    function = specification.function()
    seen = {repr(call.arguments) for call in known}
    pool: list[tuple[Any, ...]] = []
    for _ in range(POOL):
        arguments = specification.arguments(rng)
        if repr(arguments) not in seen:
            seen.add(repr(arguments))
            pool.append(arguments)
    results = [function.value(*arguments) for arguments in pool]
    chosen: dict[int, None] = {}
    for mistaken in (*specification.slipped(), *specification.neighbours()):
        others = (i for i in range(len(pool)) if i not in chosen)
        telling = (i for i in (*chosen, *others) if _result(mistaken, pool[i]) != results[i])
        chosen |= dict.fromkeys(islice(telling, 1))
    # New results come first: where one result is frequent, answering it always must not nearly do.
    shown = {repr(results[i]) for i in chosen}
    unseen = [i for i in range(len(pool)) if repr(results[i]) not in shown]
    for i in (*unseen, *range(len(pool))):
        if len(chosen) < CASES:
            chosen[i] = None
    return tuple(Call(pool[i], results[i]) for i in chosen)


def _result(function: Function, arguments: tuple[Any, ...]) -> Any:
    try:
        return function.value(*arguments)
    except (ArithmeticError, TypeError, ValueError) as e:
        return type(e)


@dataclass(frozen=True, kw_only=True)
class GeneratedTask(Task):
    """A function to write.

    Attributes:
        name: of the function.
        specification: what it has to compute.
        examples: calls that the prompt shows.
    """

    name: str
    specification: Specification
    examples: tuple[Call, ...] = ()

    def calls(self, visit: int) -> tuple[Call, ...]:
        """The hidden calls of a *visit*; the same for all samples of a group."""
        return calls_of(self.specification, f"{self.id}/{visit}", self.examples)

    def reply(self, slips: Slips = lambda: False) -> str:
        """The function, with the slips that *slips* asks for."""
        return self.specification.function(slips).text(self.name, self.specification.parameters)


@dataclass(frozen=True, kw_only=True)
class Procedural:
    """Settings of the generated problems; `quintain_code.environment.Code` documents them."""

    kinds: tuple[str, ...] = tuple(KINDS)
    levels: tuple[int, ...] = (2, 3)
    slips: float = 0.55
    examples: int = 0
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise UsageError(f"code: unknown kind {kind!r}{did_you_mean(kind, KINDS)}; expected {', '.join(KINDS)}")
        if not self.kinds or not self.levels or not all(1 <= n <= 3 for n in self.levels):
            raise UsageError(f"code: kinds {self.kinds!r}, levels {self.levels!r}; expected kinds, and levels 1 to 3")
        if not 0 <= self.slips <= 1 or not 0 <= self.examples <= CASES or self.size < 1:
            raise UsageError(
                f"code: slips {self.slips}, examples {self.examples}, size {self.size}; expected a share, at most "
                f"{CASES}, and at least 1"
            )

    def tasks(self, split: str) -> Iterator[GeneratedTask]:
        """Tasks of *split*: endless for ``train``, else at most `size` distinct ones, whatever their names."""
        rng = Random(f"{self.seed}/{split}")
        seen: set[Specification] = set()
        drawn = 0
        while split == "train" or (len(seen) < self.size and drawn < self.size * PATIENCE):
            drawn += 1
            specification = self._draw(rng)
            if split_of(specification) != split or specification in seen or not _telling(specification):
                continue
            if split != "train":
                seen.add(specification)
            names = {p: rng.choice(RENAMED[p]) for p in specification.parameters}
            yield self._task(specification.renamed(names), rng.choice(NAMES))

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        """The tasks of *split* with replies that make a share `slips` of the possible slips."""
        rng = Random(f"{self.seed}/{split}/slips")
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=task.reply(lambda: rng.random() < self.slips))

    def _task(self, specification: Specification, name: str) -> GeneratedTask:
        examples = calls_of(specification, "examples")[: self.examples] if self.examples else ()
        head = f"Python {name}({', '.join(specification.parameters)}): {specification.sentence()}."
        return GeneratedTask(
            prompt="\n".join([head, *(f"{call.text(name)} == {call.expected!r}" for call in examples)]),
            level=len(specification.steps),
            name=name,
            specification=specification,
            examples=examples,
        )

    def _draw(self, rng: Random) -> Specification:
        kind = rng.choice(self.kinds)
        parameters, steps = KINDS[kind].draw(rng, rng.choice(self.levels))
        return Specification(kind=kind, parameters=parameters, steps=steps)


def split_of(specification: Specification) -> str:
    """The split that owns the specification, in every process, for every seed: splits are disjoint by content."""
    content = repr((specification.kind, specification.steps)).encode()
    slot = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")


def _telling(specification: Specification) -> bool:
    """Whether no result is so frequent that a constant nearly does."""
    rng, function = Random(repr(specification)), specification.function()
    results = [repr(function.value(*specification.arguments(rng))) for _ in range(TRIED)]
    return max(map(results.count, set(results))) <= TRIED // 2
