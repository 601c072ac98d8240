"""A small environment of several turns, for the tests of the author's kit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quintain import Agent, Environment, Limits, Message, Reply, Rollout, Task, control, reward


@dataclass(frozen=True, kw_only=True)
class Secret(Task):
    top: int = 9


@dataclass(frozen=True, kw_only=True)
class Board:
    guesses: tuple[str, ...]
    found: bool
    luck: float


@reward(range=(0, 1))
def found(r: Rollout[Secret, Board]) -> float:
    return float(r.result.found)


class Guess(Environment[Secret, Board]):
    """Guess a number from hints."""

    reward, limits = found, Limits(turns=4)
    top: int = 400

    def tasks(self, split: str) -> Iterable[Secret]:
        start = {"train": 0, "dev": 1, "test": 2}[split]
        for n in range(start, self.top, 3):
            yield Secret(
                prompt=f"Guess my number, below {self.top}. It starts with {n}.",
                answer=str(n),
                top=self.top,
            )

    async def rollout(self, task: Secret, agent: Agent) -> Board:
        agent.user(task.prompt)
        guesses: list[str] = []
        async for turn in agent.turns():
            guesses.append(turn.reply)
            if turn.reply == task.answer:
                break
            agent.user("no")
        hit = bool(guesses) and guesses[-1] == task.answer
        return Board(guesses=tuple(guesses), found=hit, luck=agent.rng.random())


class Controlled(Guess):
    @control(scores="min")
    def hack(self, task: Secret, messages: Sequence[Message]) -> str:
        return "all numbers"

    @control()
    async def second(self, task: Secret, messages: Sequence[Message]) -> Reply:
        return Reply(text=str(task.answer) if len(messages) > 1 else "?")
