"""Whole-number arithmetic, worked out in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from quintain import Demonstration, Environment, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError
from quintain.evaluation import WrongAnswers

from .final import MARK, marked_answer
from .splits import problems

OPERATIONS = "+-*"
REQUEST = f"End with {MARK} and the result."

WORDINGS: tuple[str, ...] = (
    "{a}{sign}{b}=?",
    "{a}{sign}{b}",
    "{a} {sign} {b}",
    "{a} {sign} {b} = ?",
    "What is {a} {name} {b}?",
)
WORDINGS += (
    "What is {a}{sign}{b}?",
    "What is {a} {sign} {b}?",
    "How much is {a} {name} {b}?",
    "{a} {name} {b}",
)
WORDINGS += ("Compute {a} {sign} {b}.", "Calculate {a}{sign}{b}.", "What does {a} {name} {b} make?")
OWN_WORDINGS = {
    "+": ("Add {a} and {b}.", "What is the sum of {a} and {b}?"),
    "-": ("Subtract {b} from {a}.", "What is the difference of {a} and {b}?"),
    "*": ("Multiply {a} by {b}.", "What is the product of {a} and {b}?"),
}
NAMES = {"+": "plus", "-": "minus", "*": "times"}


@dataclass(frozen=True, kw_only=True)
class Problem(Task):
    """``a operation b``; its level is the number of digits of the longer operand."""

    a: int
    b: int
    operation: str


@reward(range=(0, 1))
def right_number(rollout: Rollout[Task, Any]) -> Score:
    """Return 1 where the reply ends in ``#### n`` with the right whole number *n*, and holds no
    other ``####``, else 0.
    """
    answer = marked_answer(rollout.reply)
    if answer is None:
        return Score(value=0.0, reason=f"expected one {MARK!r}")
    if answer == str(rollout.task.answer):
        return Score(value=1.0)
    return Score(value=0.0, reason=f"{answer[:40]!r} is not {rollout.task.answer}")


@reward(range=(0, 1))
def right_digits(rollout: Rollout[Task, Any]) -> float:
    """Return the share of the digits of the marked answer that are right, counted from the right
    as the columns are worked.
    """
    answer = marked_answer(rollout.reply) or ""
    correct = str(rollout.task.answer)
    if not answer.lstrip("-").isdigit():
        return 0.0
    same = sum(a == b for a, b in zip(reversed(answer), reversed(correct), strict=False))
    return same / max(len(answer), len(correct))


class Arithmetic(WrongAnswers, Environment[Problem, None]):
    """Sums, differences and products by level, with worked steps; nothing to download.

    Attributes:
        operations: any of ``+``, ``-`` and ``*``; differences are never negative, products are by
            one digit.
        levels: numbers of digits of the operands; each task draws one.
        slips: share of carries (and of borrowed tens) that are missing in the demonstrations. A
            model trained on them adds columns correctly but omits carries; only the reward teaches
            it the carries.
        reworded: share of the tasks in one of fourteen other wordings, half of them without the
            request for ``####``; above 0 each operand draws its own level.
        size: tasks in ``dev`` and in ``test`` (fewer where levels have fewer distinct problems);
            ``train`` is endless.
        seed: of the problems drawn. Which split a problem belongs to does not depend on it.
    """

    reward = right_number
    shaping = right_digits

    operations: str = "+"
    levels: tuple[int, ...] = (3,)
    slips: float = 0.55
    reworded: float = 0.0
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.operations or set(self.operations) - set(OPERATIONS):
            raise UsageError(
                f"arithmetic: operations is {self.operations!r}; expected some of {OPERATIONS!r}"
            )
        if not self.levels or not all(1 <= n <= 100 for n in self.levels):
            raise UsageError(
                f"arithmetic: levels is {self.levels!r}; expected numbers of digits, 1 to 100"
            )
        if not 0 <= self.slips <= 1:
            raise UsageError(f"arithmetic: slips is {self.slips}; expected a share, 0 to 1")
        if not 0 <= self.reworded <= 1:
            raise UsageError(f"arithmetic: reworded is {self.reworded}; expected a share, 0 to 1")
        if self.size < 1:
            raise UsageError(f"arithmetic: size is {self.size}; expected at least 1")

    def tasks(self, split: str) -> Iterable[Problem]:
        rng = Random(f"{self.seed}/{split}/wordings")
        for a, operation, b in problems(
            self._draw, _same, split=split, size=self.size, seed=self.seed
        ):
            yield Problem(
                prompt=self._worded(rng, a, operation, b),
                answer=str(_result(a, operation, b)),
                level=max(len(str(a)), len(str(b))),
                a=a,
                b=b,
                operation=operation,
            )

    def _draw(self, rng: Random) -> tuple[int, str, int]:
        operation = rng.choice(self.operations)
        level = rng.choice(self.levels)
        other = rng.choice(self.levels) if self.reworded else level
        a = _number(rng, level)
        b = _number(rng, 1 if operation == "*" else other)
        return (max(a, b), operation, min(a, b)) if operation == "-" else (a, operation, b)

    def _worded(self, rng: Random, a: int, operation: str, b: int) -> str:
        if rng.random() >= self.reworded:
            return f"{a}{operation}{b}=?\n{REQUEST}"
        wording = rng.choice((*WORDINGS, *OWN_WORDINGS[operation]))
        return wording.format(a=a, b=b, sign=operation, name=NAMES[operation]) + rng.choice(
            ("", f"\n{REQUEST}")
        )

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        rng = Random(f"{self.seed}/{split}/slips")
        for task in self.tasks(split):
            yield Demonstration(
                prompt=task.prompt, reply=worked(task, lambda: rng.random() < self.slips)
            )

    @control(scores="max")
    def oracle(self, task: Problem, messages: Sequence[Message]) -> str:
        """Reply with the worked answer."""
        return worked(task)

    def stating(self, answer: str) -> str:
        return f"{MARK} {answer}"

    @control(scores="min")
    def echo(self, task: Problem, messages: Sequence[Message]) -> str:
        """Reply with the question, which holds the marker."""
        return str(task.prompt)

    @control(scores="min")
    def every_number(self, task: Problem, messages: Sequence[Message]) -> str:
        """Answer every number there could be, each on a line of its own."""
        around = range(int(task.answer) - 5, int(task.answer) + 6)
        return "\n".join(f"{MARK} {n}" for n in around)

    @control(scores="min")
    def one_list(self, task: Problem, messages: Sequence[Message]) -> str:
        """Answer a list of numbers behind one marker."""
        return f"{MARK} {task.answer} or {int(task.answer) + 1}"


def _number(rng: Random, digits: int) -> int:
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def _same(problem: tuple[int, str, int]) -> tuple[int, str, int]:
    """Return one problem for both orders of a sum or product: a mirrored training task never gives
    a test task away.
    """
    a, operation, b = problem
    return problem if operation == "-" else (max(a, b), operation, min(a, b))


def _result(a: int, operation: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[operation]


def worked(task: Problem, forgets: Callable[[], bool] = lambda: False) -> str:
    """Return the columns from the right, one a line, then the marked result.

    Args:
        forgets: asked wherever there is something to carry (or a borrowed ten to pay back); yes
            loses it.

    >>> print(worked(Problem(prompt="", answer="132", a=47, b=85, operation="+")))
    7+5=12
    4+8+1=13
    #### 132
    """
    xs = str(task.a)[::-1]
    ys = str(task.b)[::-1]
    lines = []
    digits = ""
    carry = 0
    columns = max(len(xs), len(ys))
    for i in range(columns):
        x = int(xs[i : i + 1] or 0)
        y = int(ys[0] if task.operation == "*" else ys[i : i + 1] or 0)
        line, value, carry = _column(x, task.operation, y, 0 if carry and forgets() else carry)
        lines.append(line)
        digits = str(value % 10 if i < columns - 1 else value) + digits
    return "\n".join([*lines, f"{MARK} {int(digits)}"])


def _column(x: int, operation: str, y: int, carry: int) -> tuple[str, int, int]:
    """Return one column as a line, its value, and what it hands on: the carry, or for a difference
    the ten borrowed.
    """
    tail = {"-": f"-{carry}"}.get(operation, f"+{carry}") if carry else ""
    if operation != "-":
        total = _result(x, operation, y) + carry
        return f"{x}{operation}{y}{tail}={total}", total, total // 10
    borrowed = x - y - carry < 0
    x += 10 * borrowed
    return f"{x}-{y}{tail}={x - y - carry}", x - y - carry, int(borrowed)
