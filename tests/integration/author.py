"""Environments whose code misbehaves in the way that its field `mode` says; it touches the file
``here`` first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from quintain import Environment, Limits, Rollout, Task, reward


def blocks(mode: str) -> None:
    """Block in one of several ways, unless there is a file ``fixed``, or return at once."""
    if Path("fixed").exists():
        return
    if mode in ("spins", "sleeps", "catches", "backtracks", "waits without end"):
        Path("here").touch()
    while mode == "spins":
        pass
    while mode == "sleeps":
        time.sleep(1e6)
    while mode == "catches":
        try:
            time.sleep(1e6)
        except BaseException:
            time.sleep(0.1)
    if mode == "backtracks":
        re.match(r"(a+)+$", "a" * 60 + "b")


@reward
async def judged(rollout: Rollout[Task, None]) -> Any:
    mode = rollout.task.answer
    blocks(mode)
    if mode == "exits":
        sys.exit(0)
    if mode == "cancels":
        raise asyncio.CancelledError
    if mode == "exits in a task":
        await asyncio.gather(_exits(), asyncio.sleep(1))
    if mode == "waits":
        await asyncio.Event().wait()
    while mode == "waits without end":
        with contextlib.suppress(BaseException):
            await asyncio.sleep(1e6)
    if mode == "keeps a thread":
        await asyncio.to_thread(time.sleep, 1e6)
    if mode == "leaves a thread":
        threading.Thread(target=time.sleep, args=(1e6,), name="forgotten").start()
    if mode == "forks" and os.fork() == 0:
        sys.exit(0)
    return 1.0


async def _exits() -> None:
    sys.exit(0)


class Misbehaving(Environment[Task, None]):
    """From the fourth of eight tasks on, each misbehaves by one word of *mode*: in the reward or
    (*where*) in the episode or the list of tasks.
    """

    reward = judged
    limits = Limits(turns=1, reward_seconds=0.5)
    mode: str = "fine"
    where: str = "reward"

    def tasks(self, split: str) -> Any:
        if self.where == "tasks":
            blocks(self.mode)
            sys.exit(0)
        modes = dict(enumerate(self.mode.split(", ")))  # of the tasks from the fourth on
        modes = modes if self.where == "reward" else {}
        return [
            Task(prompt=f"{split} {i}", answer=modes.get(i - 3, ""), id=f"task-{i}")
            for i in range(8)
        ]

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        await agent.turn()
        if self.where == "rollout" and task.id == "task-3":
            blocks(self.mode)
            sys.exit(0)
