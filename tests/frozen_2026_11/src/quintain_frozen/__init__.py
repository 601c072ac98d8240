"""An environment with a tool, a reward in two parts, and a service with a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Score,
    Service,
    Task,
    ToolCall,
    control,
    need,
    reward,
)

__all__ = ["Ledger", "Sums", "right"]


class Ledger(Service):
    """Counts questions.

    Args:
        largest: questions that are counted apart.
    """

    def __init__(self, *, largest: int = 1000) -> None:
        self.largest, self.counts = largest, Counter[str]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def note(self, question: str) -> int:
        if question in self.counts or len(self.counts) < self.largest:
            self.counts[question] += 1
        return self.counts[question]

    def state(self) -> Mapping[str, Any]:
        return {"counts": dict(self.counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.counts = Counter(state["counts"])


@dataclass(frozen=True, kw_only=True)
class Sum(Task):
    """A task with fields of its own."""

    a: int
    b: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an episode hands to its reward."""

    calls: int = 0


@reward(range=(0, 1))
def right(rollout: Rollout[Sum, Seen], *, bonus: float = 0.0) -> Score:
    """1 for the right number.

    Args:
        bonus: for a reply after a call.
    """
    correct = float(rollout.reply.strip() == rollout.task.answer)
    called = float(rollout.result.calls > 0)
    return Score(value=min(1.0, correct + bonus * called), parts={"called": called})


class Sums(Environment[Sum, Seen]):
    """Add two numbers, with a tool that does.

    Attributes:
        digits: of each number.
    """

    reward, limits, early = right, Limits(turns=3), 0.0

    digits: int = 1
    ledger: Ledger = need("frozen_ledger")

    def tasks(self, split: str) -> Iterable[Sum]:
        end = 10**self.digits
        for number in range(end * end):
            if ("train", "train", "dev", "test")[number % 4] == split:
                a, b = divmod(number, end)
                yield Sum(prompt=f"{a} + {b} = ?", answer=str(a + b), a=a, b=b, id=f"{a}-{b}")

    async def rollout(self, task: Sum, agent: Agent) -> Seen:
        calls = 0

        def add(a: int, b: int) -> int:
            """Add two numbers."""
            nonlocal calls
            calls += 1
            return a + b

        self.ledger.note(str(task.prompt))
        agent.user(task.prompt)
        await agent.run(add)
        return Seen(calls=calls)

    @control(scores="max")
    def oracle(self, task: Sum, messages: Sequence[Message]) -> str | Reply:
        """Call the tool, then reply with its result."""
        call = Reply(calls=(ToolCall(name="add", arguments={"a": task.a, "b": task.b}),))
        return task.answer if messages[-1].role == "tool" else call

    @control(scores="min")
    def silent(self, task: Sum, messages: Sequence[Message]) -> str:
        """Reply with nothing."""
        return "-"

    demonstrator = oracle
