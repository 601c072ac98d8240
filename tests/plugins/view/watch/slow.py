"""Environments, rewards and an engine with waits that a test plants, for the names of what a step
waits for.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence

from quintain import (
    Agent,
    Environment,
    Rollout,
    Sampled,
    Sampling,
    Task,
    TokenEngine,
    Weights,
    reward,
)
from quintain.errors import UsageError
from quintain_authoring.byte_tokenizer import ByteTokenizer

CALL = "<tool_call>\n{}\n</tool_call>"


@reward(range=(0, 1))
def quick(rollout: Rollout) -> float:
    """Score by the sample, so that groups have a gradient."""
    return float(rollout.sample % 2)


@reward(range=(0, 1))
async def judged(rollout: Rollout, seconds: float = 0.0) -> float:
    """The same after a wait for somebody else."""
    await asyncio.sleep(seconds)
    return float(rollout.sample % 2)


@reward(range=(0, 1))
def counted(rollout: Rollout, seconds: float = 0.0) -> float:
    """The same after work that lets nothing else run."""
    time.sleep(seconds)
    return float(rollout.sample % 2)


class Looking(Environment[Task, None]):
    """Asks for one call of a tool; `lookup` waits for somebody else, `count` blocks the process.

    Its fields are the seconds of both, and of its own code.
    """

    reward = quick
    lookup: float = 0.0
    count: float = 0.0
    own: float = 0.0

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"task {number}") for number in range(20)]

    async def rollout(self, task: Task, agent: Agent) -> None:
        async def lookup(word: str) -> str:
            """Look a word up."""
            await asyncio.sleep(self.lookup)
            return word

        def count(word: str) -> str:
            """Count a word."""
            time.sleep(self.count)
            return word

        agent.user(task.prompt)
        await asyncio.sleep(self.own)
        await agent.run(lookup, count)


class Caller(TokenEngine):
    """Calls the tool that it is told to in the first turn of a conversation, and ends the second.

    Args:
        tool: its name; empty calls none.
        seconds: of a turn.
        load: seconds that new weights take.
    """

    name = "caller"

    def __init__(self, *, tool: str = "", seconds: float = 0.0, load: float = 0.0) -> None:
        self.tokenizer = ByteTokenizer()
        self.context = 4096
        self._tool, self._seconds, self._load = tool, seconds, load

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        await asyncio.sleep(self._seconds)
        answered = "tool_response" in self.tokenizer.decode(list(ids)) if self._tool else True
        call = CALL.format(json.dumps({"name": self._tool, "arguments": {"word": "a"}}))
        text = "done" if answered else call
        new = (*self.tokenizer.encode(text), self.tokenizer.stop_ids[0])
        return Sampled(
            ids=new,
            logps=(-1.0,) * len(new),
            versions=(self.version,) * len(new),
            finish="stop",
            stop=new[-1],
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        raise UsageError("it scores nothing")

    async def update(self, weights: Weights) -> int:
        await asyncio.sleep(self._load)
        self.version = weights.version
        return self.version
