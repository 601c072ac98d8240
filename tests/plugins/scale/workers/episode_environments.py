"""Environments whose episodes are played in processes of their own, by the tests of these."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintain import Agent, Environment, Limits, Rollout, Service, Task, need, reward
from quintain.errors import UsageError
from quintain.interfaces.engine import Engine


@reward(range=(0, 1))
def even(rollout: Rollout) -> float:
    """Return 1 for a reply of an even number of characters."""
    return float(len(rollout.reply) % 2 == 0)


@reward(range=(0, 1))
def played(rollout: Rollout) -> float:
    """Return 1 for an episode that came to its end."""
    return float(rollout.result.text == rollout.task.answer)


class OneTurn(Environment[Task, None]):
    """Ask once."""

    reward = even
    many: int = 40

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"{split} {n}?", answer=f"{n}") for n in range(self.many)]


@dataclass(frozen=True, kw_only=True)
class Total:
    """What the tools of an episode added up."""

    total: float
    drawn: float


class Adds(OneTurn):
    """A tool whose calls wait, and another player that hears of some results."""

    reward, limits = even, Limits(turns=6)

    async def rollout(self, task: Task, agent: Agent) -> Total:
        total = drawn = 0.0
        other = agent.player("other")

        async def add(x: int) -> str:
            """Add a number, and one that is drawn."""
            nonlocal total, drawn
            drawn = agent.rng.random()
            total += x + drawn
            await asyncio.sleep(0.001 * (x % 2))
            other.user(f"{total}")
            if total > 100:
                await other.turn()
            return f"{total}"

        agent.user(task.prompt)
        await agent.run(add)
        agent.metric(total=total)
        return Total(total=total, drawn=drawn)


@dataclass(frozen=True, kw_only=True)
class Text:
    """The end of an episode."""

    text: str


class Deadly(OneTurn):
    """Episodes that end, block or fill their process.

    Attributes:
        folder: where an episode notes that it has begun, so that it knows a second time.
        kills: which tasks are deadly: every so many; 0 is none.
        how: what happens there.
        group: the file that takes a process into a control group with little memory.
        always: also the second time.
    """

    reward = played
    folder: str = ""
    kills: int = 0
    how: str = "exit"
    always: bool = False
    group: str = ""

    async def rollout(self, task: Task, agent: Agent) -> Text:
        agent.user(task.prompt)
        await agent.turn()
        if self.kills and int(task.answer) % self.kills == 0:
            first = self._first(f"{task.answer}-{agent.rng.random()}")
            if first or self.always:
                await self._die()
        return Text(text=str(task.answer))

    def _first(self, name: str) -> bool:
        try:
            (Path(self.folder) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    async def _die(self) -> None:
        if self.how == "exit":
            os._exit(3)
        elif self.how == "crash":
            ctypes.string_at(0)
        elif self.how == "block":
            print("a line before", flush=True)
            time.sleep(3600)  # noqa: ASYNC251 - this is the fault
        elif self.how == "leak":
            KEPT.append(bytearray(os.urandom(1 << 20) * 300))
        elif self.how == "memory":
            Path(self.group).write_text(str(os.getpid()))  # noqa: ASYNC240 - a file of the kernel
            KEPT.append(bytearray(os.urandom(1 << 20) * 300))


KEPT: list[bytearray] = []


class Says(OneTurn):
    """An episode that logs, and one that finds a mistake in the recipe."""

    mistake: bool = False

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.turn()
        logging.getLogger("says").warning("task %s", task.answer)
        if self.mistake:
            raise UsageError("a mistake in the recipe")


class Rival(OneTurn):
    """Plays against an engine that is a service."""

    rival: Engine = need()

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        turn = await agent.turn()
        other = agent.player("rival", self.rival)
        other.user(turn.reply)
        agent.metric(heard=len((await other.turn()).reply))


class Odd(OneTurn):
    """Needs a package that is not installed beside the run."""

    limits = Limits(turns=2)

    async def rollout(self, task: Task, agent: Agent) -> Text:
        import oddpackage  # type: ignore[import-not-found]  # here, since the run has it not

        agent.user(f"{task.prompt} {oddpackage.VALUE}")
        await agent.turn()
        agent.user("once more")
        return Text(text=f"{(await agent.fork('other', 1).turn()).reply} {oddpackage.VALUE}")


class Counts(OneTurn):
    """Counts its episodes in a service."""

    counter: Any = need()

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.turn()
        self.counter.count += 1


class Unused(Service):
    """Fills a slot of the recipe."""


class Breaks(OneTurn):
    """Cannot be made."""

    def __post_init__(self) -> None:
        if os.environ.get("PYTHONHASHSEED") == "0" and os.getsid(0) == os.getpid():
            raise UsageError("not in an episode process")
