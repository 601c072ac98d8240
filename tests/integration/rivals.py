"""An environment with a second player that an engine plays, and a number of letters to choose."""

from __future__ import annotations

from typing import Any

from quintain import Agent, Engine, Rollout, Task, need, reward

from .letters import Letters


@reward(range=(0, 1))
def odd(rollout: Rollout) -> float:
    """Half of all random replies score 1, so that a tiny random model has something to learn
    from.
    """
    return float(sum(map(ord, rollout.reply)) % 2)


class Rivals(Letters):
    """Say anything, beside a player that is not trained."""

    reward, shaping = odd, None
    rival: Engine = need()

    async def rollout(self, task: Task, agent: Agent) -> Any:
        other = agent.player("rival", self.rival)
        for player in (other, agent):
            player.user(task.prompt)
            await player.turn()
        return None
