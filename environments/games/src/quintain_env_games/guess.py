"""The environment `guess`: find a number by guesses and hints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from quintain import Agent, Environment, Limits, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError

from .habits import slips
from .splits import problems

NUMBER = re.compile(r"(?<![\d.])\d{1,9}(?![\d.]*\d)")


@dataclass(frozen=True, kw_only=True)
class Secret(Task):
    """A number from *low* to *high* (its `answer`), to be found within *tries* guesses."""

    low: int
    high: int
    tries: int


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """What was guessed, in order; ``None`` where a reply held no number."""

    found: bool
    guesses: tuple[int | None, ...]


@reward(range=(0, 1))
def found_number(rollout: Rollout[Secret, Guesses]) -> float:
    """Return 1 where the number was found within the tries, else 0."""
    return float(rollout.result.found)


@reward(range=(0, 1))
def turns_saved(rollout: Rollout[Secret, Guesses]) -> float:
    """Return the share of tries that were left when the number was found; 0 where it was not."""
    if not rollout.result.found:
        return 0.0
    return 1 - len(rollout.result.guesses) / rollout.task.tries


@reward(range=(-1, 0))
def imbalance(rollout: Rollout[Secret, Guesses]) -> Score:
    """Return for each turn how far its guess is from halving the range, negated, as a share of the
    tries.

    A guess that halves gets 0; one that the hints exclude, or no number, gets -1 / tries. It
    depends on the guess and not on the number, so luck is no part of it.
    """
    task, guesses, turns = rollout.task, rollout.result.guesses, []
    for i, guess in enumerate(guesses):
        low, high = bounds(task, guesses[:i])
        size = high - low + 1
        excluded = (
            size - max(guess - low, high - guess)
            if guess is not None and low <= guess <= high
            else 0
        )
        turns.append((excluded / (size - size // 2) - 1) / task.tries)
    return Score(turns=tuple(turns))


class Guess(Environment[Secret, Guesses]):
    """Find a number by guesses; each gets a hint, ``higher: 12 to 19``. Halving the range always
    finds it in time.

    The guess is the last whole number of a reply.

    Attributes:
        remind: whether a hint repeats the numbers that are left; without them the policy has to
            keep the bounds.
        top: greatest number.
        least, most: numbers in the range of a task; its tries are just enough for halving.
        slips: share of the guesses of the demonstrations that take the lower bound, not the middle.
            A model trained on them keeps the bounds, and finds a number in time where it is lucky;
            only the reward teaches it to halve.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the tasks drawn. Which split a task belongs to does not depend on it.
    """

    reward = found_number
    shaping = 0.1 * turns_saved + 0.5 * imbalance
    limits = Limits(turns=30)

    remind: bool = True
    top: int = 50
    least: int = 10
    most: int = 31
    slips: float = 0.55
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= self.top:
            raise UsageError(
                f"guess: least {self.least}, most {self.most}, top {self.top}; expected 1 or more, "
                f"rising"
            )
        if not 0 <= self.slips <= 1 or self.size < 1:
            raise UsageError(
                f"guess: slips {self.slips}, size {self.size}; expected a share, and at least 1"
            )

    def tasks(self, split: str) -> Iterable[Secret]:
        for low, high, secret in problems(self._draw, split=split, size=self.size, seed=self.seed):
            tries = (high - low + 1).bit_length()
            yield Secret(
                prompt=f"Guess my number, {low} to {high}, in {tries}.",
                answer=secret,
                level=tries,
                low=low,
                high=high,
                tries=tries,
            )

    def _draw(self, rng: Random) -> tuple[int, int, int]:
        width = rng.randint(self.least, self.most)
        low = rng.randint(1, self.top - width + 1)
        return low, low + width - 1, rng.randint(low, low + width - 1)

    async def rollout(self, task: Secret, agent: Agent) -> Guesses:
        agent.user(task.prompt)
        guesses: list[int | None] = []
        async for turn in agent.turns():
            guesses.append(guess_of(turn.reply))
            if guesses[-1] == task.answer or len(guesses) == task.tries:
                break
            agent.user(hint(task, guesses, remind=self.remind))
        return Guesses(found=task.answer in guesses, guesses=tuple(guesses))

    @control()
    def demonstrator(self, task: Secret, messages: Sequence[Message]) -> str:
        """Give the lower bound as often as `slips` says, else the middle."""
        low, high = bounds(task, _guesses(messages))
        return str(low if slips(task, messages, self.slips) else (low + high) // 2)

    @control(scores="max")
    def oracle(self, task: Secret, messages: Sequence[Message]) -> str:
        """Give the middle, which halves the range."""
        low, high = bounds(task, _guesses(messages))
        return str((low + high) // 2)

    @control(scores="min")
    def nop(self, task: Secret, messages: Sequence[Message]) -> str:
        """Reply with nothing."""
        return ""

    @control(scores="min")
    def every_number(self, task: Secret, messages: Sequence[Message]) -> str:
        """Give all numbers of the range in one reply, the right one first."""
        others = [n for n in range(task.low, task.high + 1) if n != task.answer]
        return " ".join(map(str, [task.answer, *others]))

    @control(scores="min")
    def decimal(self, task: Secret, messages: Sequence[Message]) -> str:
        """Give a decimal number that begins with the right one."""
        return f"{task.answer}.5"


def guess_of(reply: str) -> int | None:
    """Return the last whole number of a reply, of nine digits at most; ``None`` where there is
    none.

    >>> guess_of("12-19: 15"), guess_of("3.5"), guess_of("none")
    (15, None, None)
    """
    numbers = NUMBER.findall(reply)
    return int(numbers[-1]) if numbers else None


def hint(task: Secret, guesses: Sequence[int | None], *, remind: bool = True) -> str:
    """Return what the environment says to the last of *guesses*, which is wrong.

    >>> hint(Secret(prompt="", answer=7, low=1, high=15, tries=4), [8])
    'lower: 1 to 7'
    """
    last = guesses[-1]
    word = "Say a number" if last is None else "higher" if last < task.answer else "lower"
    low, high = bounds(task, guesses)
    return f"{word}: {low} to {high}" if remind else word


def bounds(task: Secret, guesses: Sequence[int | None]) -> tuple[int, int]:
    """Return the bounds that the hints to *guesses* leave; all of these are wrong."""
    low, high = task.low, task.high
    for guess in guesses:
        if guess is not None and guess < task.answer:
            low = max(low, guess + 1)
        elif guess is not None:
            high = min(high, guess - 1)
    return low, high


def _guesses(messages: Sequence[Message]) -> list[int | None]:
    return [guess_of(m.content) for m in messages if m.role == "assistant"]
