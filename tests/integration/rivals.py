"""An environment with a second player that an engine plays, and a number of letters to choose."""

from __future__ import annotations

from typing import Any

from quintain import Agent, Engine, Task, need

from .letters import Letters


class Rivals(Letters):
    """Say as many a as you can, beside a player that is not trained."""

    rival: Engine = need()

    async def rollout(self, task: Task, agent: Agent) -> Any:
        other = agent.player("rival", self.rival)
        for player in (other, agent):
            player.user(task.prompt)
            await player.turn()
        return None
