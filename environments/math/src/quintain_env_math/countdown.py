"""Reach a number with the given ones: each is used once, with ``+ - * /`` and brackets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from quintain import Demonstration, Environment, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError

from .final import MARK, marked_answer
from .splits import problems

LONGEST = 200
"""Characters of an expression that is looked at at all; bounds the work of the parser."""

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")


@dataclass(frozen=True, kw_only=True)
class Numbers(Task):
    """Reach *target* with *numbers*; *steps* are a solution, a line each, and the answer is it as
    one expression.
    """

    numbers: tuple[int, ...]
    target: int
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A part of a solution: an expression, its value and the steps that lead to it."""

    text: str
    value: int
    steps: tuple[str, ...] = ()


@reward(range=(0, 1))
def reaches_target(rollout: Rollout[Numbers, None]) -> Score:
    """Return 1 where the marked expression uses each given number exactly once and equals the
    target, else 0.
    """
    answer = marked_answer(rollout.reply)
    if answer is None:
        return Score(value=0.0, reason=f"expected one {MARK!r}")
    try:
        value, used = evaluate(answer)
    except ValueError as e:
        return Score(value=0.0, reason=str(e))
    if sorted(used) != sorted(rollout.task.numbers):
        return Score(
            value=0.0, reason=f"uses {used}, expected each of {list(rollout.task.numbers)} once"
        )
    return Score(
        value=float(value == rollout.task.target),
        reason="" if value == rollout.task.target else f"gives {value}",
    )


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Return the exact value of an expression of whole numbers, ``+ - * /`` and brackets, and the
    numbers in it.

    Parsed, never run.

    Raises:
        ValueError: it is something else, too long, or divides by 0.
    """
    text = text.replace("\u00d7", "*").replace("\u00f7", "/").strip()
    if len(text) > LONGEST or not _ALLOWED.fullmatch(text):
        raise ValueError(f"not an expression of at most {LONGEST} characters: {text[:40]!r}")
    try:
        tree = ast.parse(text, mode="eval")
    except (
        SyntaxError,
        MemoryError,
        RecursionError,
    ) as e:  # the parser's stack is bounded: deep brackets end in any of these
        raise ValueError(f"not an expression: {text[:40]!r}") from e
    used: list[int] = []
    return _value(tree.body, used), used


def _value(node: ast.expr, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp):
        raise ValueError("only whole numbers, + - * / and brackets are allowed")
    a, b = _value(node.left, used), _value(node.right, used)
    match node.op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div() if b:
            return a / b
        case ast.Div():
            raise ValueError("divides by 0")
    raise ValueError("only + - * / are allowed")


class Countdown(Environment[Numbers, None]):
    """The numbers game, always solvable; nothing to download.

    Attributes:
        levels: how many numbers are given; each task draws one.
        highest: greatest number given.
        targets: least and greatest target.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the problems drawn. Which split a problem belongs to does not depend on it.
    """

    reward = reaches_target

    levels: tuple[int, ...] = (3, 4)
    highest: int = 25
    targets: tuple[int, int] = (10, 100)
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.levels or not all(2 <= n <= 8 for n in self.levels):
            raise UsageError(
                f"countdown: levels is {self.levels!r}; expected how many numbers are given, 2 to 8"
            )
        if not 1 <= self.targets[0] <= self.targets[1]:
            raise UsageError(
                f"countdown: targets is {self.targets!r}; expected the least and the greatest, "
                f"from 1"
            )
        if self.highest < 2 or self.targets[0] > 2 * self.highest:
            raise UsageError(
                f"countdown: highest is {self.highest}; expected at least half of the least "
                f"target, and 2"
            )
        if self.size < 1:
            raise UsageError(f"countdown: size is {self.size}; expected at least 1")

    def tasks(self, split: str) -> Iterable[Numbers]:
        for numbers, solution in problems(
            self._draw, _same, split=split, size=self.size, seed=self.seed
        ):
            listed = ", ".join(map(str, numbers))
            yield Numbers(
                prompt=(
                    f"Make {solution.value} from {listed}: use each number once, with + - * / and "
                    f"brackets.\n"
                    f"Work it out, then end with {MARK} and the expression."
                ),
                answer=solution.text,
                level=len(numbers),
                numbers=numbers,
                target=solution.value,
                steps=solution.steps,
            )

    def _draw(self, rng: Random) -> tuple[tuple[int, ...], Part]:
        while True:
            numbers = tuple(rng.randint(1, self.highest) for _ in range(rng.choice(self.levels)))
            solution = _combined(rng, [Part(str(n), n) for n in numbers])
            if self.targets[0] <= solution.value <= self.targets[1]:
                return numbers, solution

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=self.oracle(task, ()))

    @control(scores="max")
    def oracle(self, task: Numbers, messages: Sequence[Message]) -> str:
        """Reply with a solution, a step a line."""
        return "\n".join([*task.steps, f"{MARK} {task.answer}"])

    @control(scores="min")
    def echo(self, task: Numbers, messages: Sequence[Message]) -> str:
        """Reply with the question, which holds the marker."""
        return str(task.prompt)

    @control(scores="min")
    def target_itself(self, task: Numbers, messages: Sequence[Message]) -> str:
        """Write the target down, or reach it with numbers that were not given."""
        return f"{MARK} {task.target}*1"

    @control(scores="min")
    def call(self, task: Numbers, messages: Sequence[Message]) -> str:
        """Give a program in place of an expression."""
        return f"{MARK} int('{task.target}')"


def _same(problem: tuple[tuple[int, ...], Part]) -> tuple[tuple[int, ...], int]:
    numbers, solution = problem
    return tuple(sorted(numbers)), solution.value


def _combined(rng: Random, parts: list[Part]) -> Part:
    """Join two parts at a time, in random order, until one is left; values stay positive whole
    numbers.
    """
    while len(parts) > 1:
        rng.shuffle(parts)
        a, b = sorted((parts.pop(), parts.pop()), key=lambda p: -p.value)
        operations = ["+", "*"] + ["-"] * (a.value > b.value) + ["/"] * (a.value % b.value == 0)
        parts.append(_joined(a, rng.choice(operations), b))
    return parts[0]


def _joined(a: Part, operation: str, b: Part) -> Part:
    value = {
        "+": a.value + b.value,
        "-": a.value - b.value,
        "*": a.value * b.value,
        "/": a.value // b.value,
    }[operation]
    text = f"{_bracketed(a)}{operation}{_bracketed(b)}"
    return Part(text, value, (*a.steps, *b.steps, f"{a.value}{operation}{b.value}={value}"))


def _bracketed(part: Part) -> str:
    return part.text if part.text.isdigit() else f"({part.text})"
