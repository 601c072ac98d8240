"""The environment `instructions`: prompts whose constraints a program checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Literal

from quintain import Demonstration, Environment, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError

from . import counted, formed
from .checks import Constraint
from .kinds import KINDS, Words, draw_all, outline_of
from .rows import Splits, read_rows, split_of
from .verdicts import met, met_loosely

GENERATED = (counted, formed)
"""Modules that enter their kinds in `KINDS` as they are imported."""
MOST = 5
"""Constraints that a generated prompt has at most."""
OPENINGS = ("Write about {topic}.", "Tell me about {topic}.", "Say something about {topic}.")
EPOCH = 100_000
"""Generated prompts of ``train`` before one may come again."""
PATIENCE = 5000
"""Draws without a new prompt after which there are no more."""


@dataclass(frozen=True, kw_only=True)
class Instructed(Task):
    """A prompt with the constraints that a reply should follow."""

    constraints: tuple[Constraint, ...]


@reward(range=(0, 1))
def followed(
    rollout: Rollout[Instructed, Any],
    *,
    accuracy: Literal["strict", "loose"] = "strict",
    by: Literal["prompt", "instruction"] = "prompt",
) -> Score:
    """Return how far the reply follows the constraints of the task (arXiv:2311.07911).

    Args:
        accuracy: ``"strict"`` reads the reply as it is. ``"loose"`` accepts what is followed
            without the first line, the last line or asterisks.
        by: ``"prompt"`` is 1 where all constraints are met, else 0. ``"instruction"`` is their
            share.

    All four values are parts of the score, whichever trains.
    """
    constraints = rollout.task.constraints
    found = {
        "strict": [met(each, rollout.reply) for each in constraints],
        "loose": [met_loosely(each, rollout.reply) for each in constraints],
    }
    if accuracy not in found or by not in ("prompt", "instruction"):
        raise UsageError(
            f"followed: accuracy is {accuracy!r} and by is {by!r}; expected strict or loose, and "
            "prompt or instruction"
        )
    parts = {}
    for name, values in found.items():
        parts[f"prompt_{name}"] = float(all(values))
        parts[f"instruction_{name}"] = sum(values) / len(values)
    missed = [each for each, one in zip(constraints, found[accuracy], strict=True) if not one]
    reason = " ".join(each.asked or each.id for each in missed)
    return Score(value=parts[f"{by}_{accuracy}"], parts=parts, reason=reason[:300])


class Instructions(Environment[Instructed, None]):
    """Follow one to five constraints that a program checks: of generated prompts, or of the rows of
    IFEval and IFBench.

    Attributes:
        path: a file of JSON lines with `prompt`, `instruction_id_list` and `kwargs`, as IFEval and
            IFBench publish them; empty generates prompts.
        splits: of the file. ``"own"``: a tenth each is ``dev`` and ``test``, by a hash of the
            prompt; ``"test"``: all rows are ``test``.
        unknown: what happens to rows of the file with an instruction that no check decides:
            ``"refuse"`` or ``"drop"``.
        levels: numbers of constraints of generated prompts, 1 to 5; each prompt draws one. Level 1
            has easy kinds alone.
        kinds: names of kinds to draw from; empty takes all.
        slips: share of the demonstrations that miss one constraint, so that a model trained on
            them has something to learn from the reward.
        size: generated prompts in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the prompts drawn. Which split a prompt belongs to does not depend on it.
    """

    reward = followed

    path: str = ""
    splits: Splits = "own"
    unknown: Literal["refuse", "drop"] = "refuse"
    levels: tuple[int, ...] = (1, 2, 3)
    kinds: tuple[str, ...] = ()
    slips: float = 0.5
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.levels or not all(1 <= level <= MOST for level in self.levels):
            raise UsageError(
                f"instructions: levels is {self.levels!r}; expected numbers of constraints, 1 to {MOST}"
            )
        strange = sorted(set(self.kinds) - KINDS.keys())
        if strange:
            raise UsageError(
                f"instructions: no kind is called {', '.join(strange)}; there are {', '.join(KINDS)}"
            )
        if not 0 <= self.slips <= 1 or self.size < 1:
            raise UsageError(
                f"instructions: slips is {self.slips}, size {self.size}; expected a share, and at "
                "least 1"
            )

    def tasks(self, split: str) -> Iterable[Instructed]:
        return self._of_file(split) if self.path else self._generated(split)

    def _of_file(self, split: str) -> list[Instructed]:
        found = []
        seen: set[str] = set()
        for prompt, constraints in _rows(self.path, self.unknown):
            own = "test" if self.splits == "test" else split_of(prompt)
            task = Instructed(prompt=prompt, constraints=constraints, level=len(constraints))
            if own == split and task.id not in seen:
                seen.add(task.id)
                found.append(task)
        return found

    def _generated(self, split: str) -> Iterator[Instructed]:
        rng = Random(f"{self.seed}/{split}")
        wanted = EPOCH if split == "train" else self.size
        while True:
            seen: set[str] = set()
            misses = 0
            while misses < PATIENCE and len(seen) < wanted:
                task = self._draw(rng)
                if split_of(str(task.prompt)) != split or task.prompt in seen:
                    misses += 1
                    continue
                misses = 0
                seen.add(str(task.prompt))
                yield task
            if split != "train" or not seen:
                return

    def _draw(self, rng: Random) -> Instructed:
        words = Words(rng)
        topic = words.take()
        constraints = draw_all(rng.choice(self.levels), rng, words, self.kinds)
        opening = rng.choice(OPENINGS).format(topic=topic)
        return Instructed(
            prompt=" ".join([opening, *(each.asked for each in constraints)]),
            constraints=tuple(constraints),
            level=len(constraints),
        )

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        if self.path:
            return
        rng = Random(f"{self.seed}/{split}/slips")
        for task in self.tasks(split):
            slipped = rng.random() < self.slips
            reply = self.one_missed(task, ()) if slipped else self.oracle(task, ())
            yield Demonstration(prompt=task.prompt, reply=reply)

    @control(scores="max")
    def oracle(self, task: Instructed, messages: Sequence[Message]) -> str:
        """Reply with a text that is built to follow all constraints of a generated prompt."""
        if not all(each.kind for each in task.constraints):
            raise UsageError("the file has no replies, so none is known to follow its instructions")
        return outline_of(task.constraints).text(Random(task.id))

    @control()
    def one_missed(self, task: Instructed, messages: Sequence[Message]) -> str:
        """Reply with such a text after one constraint was broken in it."""
        reply = self.oracle(task, messages)
        missed = Random(f"{task.id}/missed").choice(task.constraints)
        return KINDS[missed.kind].spoil(reply, missed.values)

    @control()
    def echo(self, task: Instructed, messages: Sequence[Message]) -> str:
        """Reply with the prompt."""
        return str(task.prompt)


@lru_cache(maxsize=4)
def _rows(
    path: str, unknown: Literal["refuse", "drop"]
) -> tuple[tuple[str, tuple[Constraint, ...]], ...]:
    return tuple((prompt, tuple(each)) for prompt, each in read_rows(path, unknown))
