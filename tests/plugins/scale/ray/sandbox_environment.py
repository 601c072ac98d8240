"""An environment whose episodes run a program in a sandbox."""

from __future__ import annotations

from collections.abc import Iterable

from quintain import Agent, Environment, Rollout, Task, need, reward
from quintain_sandbox import ProbedSandbox, ProgramLimits

PROGRAM = ["sleep", "6.54321"]
"""By which the test finds it."""


@reward(range=(0, 1))
def ran(rollout: Rollout) -> float:
    """Return 1 if the program came to its end."""
    return float(rollout.metrics["status"] == 0)


class Sleeps(Environment[Task, None]):
    """Ask once, and run a program."""

    reward = ran
    sandbox: ProbedSandbox = need()

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"{split} {n}?") for n in range(2)]

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.turn()
        done = await self.sandbox.run({}, PROGRAM, limits=ProgramLimits(seconds=60))
        agent.metric(status=done.exit or 0)
