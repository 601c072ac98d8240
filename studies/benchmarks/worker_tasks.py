"""The environments of `studies.benchmarks.workers`, in a file that every process can load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Self

import aiohttp

from quintain import Agent, Environment, Limits, Rollout, Service, Task, need, reward
from quintain_gateway import Gateway


@reward
def ended(rollout: Rollout) -> float:
    """Return 1 for an episode that has a result."""
    return float(bool(rollout.result))


class OneTurn(Environment[Task, bool]):
    """A question and an answer."""

    reward, limits = ended, Limits(turns=5, seconds=None)
    many: int = 64

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"What is {i} + {42 - i}?", answer="42") for i in range(self.many))

    async def rollout(self, task: Task, agent: Agent) -> bool:
        agent.user(task.prompt)
        await agent.turn()
        return True


class Tool(OneTurn):
    """Calls of a tool that waits for some *seconds*, then an answer."""

    seconds: float = 0.0

    async def rollout(self, task: Task, agent: Agent) -> bool:
        async def add(x: int, y: int) -> str:
            """Add two numbers."""
            if self.seconds:
                await asyncio.sleep(self.seconds)
            return str(x + y)

        agent.user(task.prompt)
        await agent.run(add)
        return True


class Http(Service):
    """The connections of an agent."""

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close()


class Outside(OneTurn):
    """An agent on bare aiohttp that asks the gateway once."""

    gateway: Gateway = need()
    http: Http = need()

    async def rollout(self, task: Task, agent: Agent) -> bool:
        async with self.gateway.endpoint(agent) as endpoint:
            body: dict[str, Any] = {
                "model": "m",
                "messages": [{"role": "user", "content": task.prompt}],
            }
            head = {"Authorization": f"Bearer {endpoint.api_key}"}
            url = f"{endpoint.base_url}/chat/completions"
            async with self.http.session.post(url, json=body, headers=head) as answer:
                return bool(json.loads(await answer.read())["choices"])
