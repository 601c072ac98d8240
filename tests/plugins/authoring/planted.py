"""An environment of which each task has a fault of its own, for the audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quintain import Agent, Environment, Message, Rollout, Task, control, reward
from quintain.errors import UsageError

CALLS = [0]
LARGE = 200 << 20
"""Bytes that an episode of a large task holds for a moment."""


@dataclass(frozen=True, kw_only=True)
class Planted(Task):
    """A question whose reward has the fault *fault*."""

    fault: str = ""


@reward
def faulty(rollout: Rollout[Planted, None]) -> float:
    task, reply = rollout.task, rollout.reply
    if task.fault == "stuck" and reply == task.answer:
        time.sleep(30)
    if task.fault == "slow" and reply == "yes":
        time.sleep(30)
    if task.fault == "raises" and reply == "A":
        raise ValueError("no A")
    if task.fault == "unsteady" and reply == task.answer:
        CALLS[0] += 1
        return float(CALLS[0] % 2)
    free = {
        "free": True,
        "lazy": not reply,
        "echo": reply == task.prompt,
        "any word": reply.startswith("word"),
        "half": reply == "prose" and 0.5,
    }
    return float(free.get(task.fault, False) or reply == task.answer)


class Faults(Environment[Planted, None]):
    """One task of each fault that *kinds* names."""

    reward = faulty
    kinds: tuple[str, ...] = ()
    build_seconds: float = 0.0

    def __post_init__(self) -> None:
        time.sleep(self.build_seconds)

    def tasks(self, split: str) -> Iterable[Planted]:
        return [
            Planted(
                prompt=f"Say {kind or 'it'}.",
                answer=None if kind == "unsolved" else f"word {kind or 'it'}",
                level=float(number),
                fault=kind,
                id=kind or "sound",
            )
            for number, kind in enumerate(self.kinds)
        ]

    async def rollout(self, task: Planted, agent: Agent) -> None:
        agent.user(str(task.prompt))
        reply = (await agent.turn()).reply
        if task.fault == "large" and reply == task.answer:
            del [b"x" * LARGE][0]
        if task.fault == "endless" and reply == "no":
            await asyncio.sleep(60)
        if task.fault == "unplayable" and reply == task.answer:
            raise UsageError("a solution with a fault of its own")

    @control(scores="min")
    def prose(self, task: Planted, messages: Sequence[Message]) -> str:
        """Reply with a word."""
        return "prose"
