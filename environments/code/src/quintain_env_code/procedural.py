"""Generated programming tasks: short functions, described step by step, with hidden tests that are
new at each visit.

A task is its specification. Its tests are drawn from it when a solution is graded, by a seed that
differs from visit to visit: other inputs, none of them those of the examples in the prompt, and
chosen so that each common mistake and each similar function fails at least one. So neither a table
of known answers nor an enumeration of cases passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any

from quintain import (
    Demonstration,
    Environment,
    Limits,
    Message,
    Rollout,
    Score,
    Task,
    control,
    need,
    reward,
)
from quintain.errors import UsageError, did_you_mean
from quintain_sandbox import ProbedSandbox

from .calls import CallGrader
from .extract import extract
from .functions import KINDS, Call, Function, Slips, Specification
from .grading import Grade
from .tasks import ENFORCE

CASES = 10
"""Hidden calls of one grading, at least."""
POOL = 64
"""Arguments that the hidden calls are chosen from."""
SHARE = 10
"""One problem in this many is ``dev``, one is ``test``, the others are ``train``."""
PATIENCE = 5000
"""Draws without a new task after which a finite split counts as exhausted."""
TRIED = 20
"""Arguments that show whether a function says anything: at most half of them may have one
result.
"""
NAMES = ("f", "g", "h")
_grader = lru_cache(maxsize=8)(CallGrader)
"""The grader of a sandbox: it remembers grades."""
RENAMED = {"x": "xap", "y": "ybq", "z": "zcr", "w": "wds", "n": "nmk", "s": "stw"}


def calls_of(
    specification: Specification, seed: str, known: tuple[Call, ...] = ()
) -> tuple[Call, ...]:
    """Draw hidden calls, `CASES` at least: the same for the same *seed*, and none with the
    arguments of *known* ones.

    Each function with a slip and each neighbour that differs from the specification on any of
    `POOL` random arguments gives another result on at least one of the calls.
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
        telling = (i for i in (*chosen, *others) if _result(mistaken, pool[i]) != repr(results[i]))
        chosen |= dict.fromkeys(islice(telling, 1))
    # New results come first: where one result is frequent, answering it always must not nearly do.
    shown = {repr(results[i]) for i in chosen}
    unseen = [i for i in range(len(pool)) if repr(results[i]) not in shown]
    for i in (*unseen, *range(len(pool))):
        if len(chosen) < CASES:
            chosen[i] = None
    return tuple(Call(pool[i], results[i]) for i in chosen)


def _result(function: Function, arguments: tuple[Any, ...]) -> str:
    """Return the result as text, which tells 2 from 2.0, or the name of the exception."""
    try:
        return repr(function.value(*arguments))
    except (ArithmeticError, TypeError, ValueError) as e:
        return type(e).__name__


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
        """Return the hidden calls of a *visit*; the same for all samples of a group."""
        return calls_of(self.specification, f"{self.id}/{visit}", self.examples)

    def reply(self, slips: Slips = lambda: False) -> str:
        """Return the function, with the slips that *slips* asks for."""
        return self.specification.function(slips).text(self.name, self.specification.parameters)


@reward(range=(0, 1))
async def passes_calls(
    rollout: Rollout[GeneratedTask, Any], *, sandbox: ProbedSandbox = need()
) -> Score:
    """Return 1 where each hidden call of the function returns what the specification says, else 0.

    Raises:
        UsageError: the sandbox does not enforce what `ENFORCE` lists.
    """
    sandbox.require(ENFORCE)
    task = rollout.task
    extraction = extract(rollout.reply)
    if not extraction.files:
        return Score(
            value=0.0, parts=Grade(score=0.0, outcome="no_code").shares, reason=extraction.reason
        )
    (code,) = extraction.files.values()
    grade = await _grader(sandbox).grade(code, task.name, task.calls(rollout.group))
    return Score(value=grade.score, parts=grade.shares, reason=grade.reason)


class CodeProcedural(Environment[GeneratedTask, None]):
    """Short generated functions, described step by step; nothing to download.

    Attributes:
        kinds: ``formulas`` (an expression of parameters), ``numbers`` (with constants), ``lists``
            (keep, change and collect), ``loops`` (the same with a loop), ``text`` (slices and
            methods) and ``tables`` (a dictionary).
        levels: numbers of steps, 1 to 3; each task draws one.
        slips: share of places for a mistake at which the demonstrations make it: missing brackets,
            a bound that is off by one or on the wrong side, ``max`` for ``min``, an empty list, no
            default. A model trained on them writes Python, with these habits; only the reward
            teaches it better.
        examples: calls that the prompt shows; the hidden calls have other arguments.
        size: tasks in ``dev`` and in ``test`` (fewer where there are fewer distinct problems);
            ``train`` is endless.
        seed: of the problems drawn. Which split a problem belongs to does not depend on it.
    """

    reward = passes_calls
    # solutions wait for one another where many of them hang
    limits = Limits(turns=1, reward_seconds=600.0)

    kinds: tuple[str, ...] = tuple(KINDS)
    levels: tuple[int, ...] = (2, 3)
    slips: float = 0.55
    examples: int = 0
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                known = ", ".join(KINDS)
                raise UsageError(
                    f"code-procedural: unknown kind {kind!r}{did_you_mean(kind, KINDS)}; expected "
                    f"{known}"
                )
        if not self.kinds or not self.levels or not all(1 <= n <= 3 for n in self.levels):
            raise UsageError(
                f"code-procedural: kinds {self.kinds!r}, levels {self.levels!r}; expected kinds, "
                f"and levels 1 to 3"
            )
        if not 0 <= self.slips <= 1 or not 0 <= self.examples <= CASES or self.size < 1:
            raise UsageError(
                f"code-procedural: slips {self.slips}, examples {self.examples}, size {self.size}; "
                f"expected a share, 0 to {CASES}, and at least 1"
            )

    def tasks(self, split: str) -> Iterator[GeneratedTask]:
        """Yield tasks of *split*: endless for ``train``, else at most `size` distinct ones,
        whatever their names.
        """
        rng = Random(f"{self.seed}/{split}")
        seen: set[Specification] = set()
        drawn = 0
        while split == "train" or (len(seen) < self.size and drawn < PATIENCE):
            drawn += 1
            specification = self._draw(rng)
            if (
                split_of(specification) != split
                or specification in seen
                or not _telling(specification)
            ):
                continue
            if split != "train":
                seen.add(specification)
            alphabet, drawn = rng.randrange(3), 0
            names = {p: RENAMED[p][alphabet] for p in specification.parameters}
            yield self._task(specification.renamed(names), rng.choice(NAMES))

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        """Yield the tasks of *split* with replies that make a share `slips` of the possible
        slips.
        """
        rng = Random(f"{self.seed}/{split}/slips")
        for task in self.tasks(split):
            yield Demonstration(
                prompt=task.prompt, reply=task.reply(lambda: rng.random() < self.slips)
            )

    def _task(self, specification: Specification, name: str) -> GeneratedTask:
        examples = calls_of(specification, "examples")[: self.examples] if self.examples else ()
        head = f"Python {name}({', '.join(specification.parameters)}): {specification.sentence()}."
        return GeneratedTask(
            prompt="\n".join(
                [head, *(f"{call.text(name)} == {call.expected!r}" for call in examples)]
            ),
            level=len(specification.steps),
            name=name,
            specification=specification,
            examples=examples,
        )

    def _draw(self, rng: Random) -> Specification:
        kind = rng.choice(self.kinds)
        parameters, steps = KINDS[kind].draw(rng, rng.choice(self.levels))
        return Specification(kind=kind, parameters=parameters, steps=steps)

    @control(scores="max")
    def oracle(self, task: GeneratedTask, messages: Sequence[Message]) -> str:
        """Reply with the function."""
        return task.reply()

    @control(scores="min")
    def table(self, task: GeneratedTask, messages: Sequence[Message]) -> str:
        """Reply with a table of the examples in the prompt and of all hidden calls of ten other
        visits.
        """
        others = [call for visit in range(10) for call in task.calls(-1 - visit)]
        return table_of((*task.examples, *others), task.name)

    @control(scores="min")
    def exits(self, task: GeneratedTask, messages: Sequence[Message]) -> str:
        """End the process with success before any call."""
        return "import os\nos._exit(0)"

    @control(scores="min")
    def agrees(self, task: GeneratedTask, messages: Sequence[Message]) -> str:
        """Return an object that equals everything."""
        return (
            f"class A:\n    def __eq__(self, other):\n        return True\ndef {task.name}(*_):\n  "
            f"  return A()"
        )


def table_of(calls: Sequence[Call], name: str) -> str:
    """Return a function with a table of *calls*, which answers with their most frequent result
    otherwise.
    """
    known = {repr(call.arguments): call.expected for call in calls}
    results = [repr(call.expected) for call in calls]
    usual = max(results, key=results.count, default="None")
    return f"def {name}(*arguments):\n    return {known!r}.get(repr(arguments), {usual})"


def split_of(specification: Specification) -> str:
    """Return the split that owns the specification, in every process, for every seed: splits are
    disjoint by content.
    """
    content = repr((specification.kind, specification.steps)).encode()
    slot = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")


def _telling(specification: Specification) -> bool:
    """Return whether no result is so frequent that a constant nearly does."""
    rng, function = Random(repr(specification)), specification.function()
    results = [repr(function.value(*specification.arguments(rng))) for _ in range(TRIED)]
    return max(map(results.count, set(results))) <= TRIED // 2
