"""What the tests of the gateway share: a gateway over a scripted engine, and a bare client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp

from quintain import Reply, Sampling, ToolCall
from quintain_authoring import ScriptedEngine
from quintain_gateway import Endpoint, Gateway
from quintain_gateway.engine_policy import EnginePolicy

Script = str | Sequence[str | Reply] | Callable[..., str | Reply]

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        },
    },
}

CALL = Reply(text="I add.", calls=(ToolCall(name="add", arguments={"x": 2, "y": 3}),))


class Client:
    """Sends requests and returns status and JSON."""

    def __init__(
        self, http: aiohttp.ClientSession, endpoint: Endpoint, policy: EnginePolicy
    ) -> None:
        self.http, self.endpoint, self.policy = http, endpoint, policy

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON; a stream is a list of its events' data."""
        head = {
            "Authorization": f"Bearer {self.endpoint.api_key}",
            "Content-Type": "application/json",
            **headers,
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.endpoint.base_url + path, data=data, headers=head) as answer:
            text = await answer.text()
            if answer.content_type != "text/event-stream":
                return answer.status, json.loads(text)
            events = [
                line.removeprefix("data: ")
                for line in text.splitlines()
                if line.startswith("data: ")
            ]
            return answer.status, [json.loads(e) for e in events if e != "[DONE]"]

    async def chat(self, *messages: Any, **more: Any) -> Any:
        """The first message of the answer to *messages*: texts of alternating users and assistants,
        or whole ones.
        """
        status, body = await self.post(
            "/chat/completions", {"model": "m", "messages": talk(*messages), **more}
        )
        assert status == 200, body
        return body["choices"][0]["message"]

    @property
    def branches(self) -> dict[str, int]:
        """Number of branches of each conversation."""
        return {name: len(t.branches) for name, t in self.policy.transcripts().items()}


def talk(*messages: Any) -> list[Any]:
    """Messages; texts are those of a user and an assistant in turns."""
    roles = ("user", "assistant")
    return [
        {"role": roles[i % 2], "content": m} if isinstance(m, str) else m
        for i, m in enumerate(messages)
    ]


@contextlib.asynccontextmanager
async def client(
    replies: Script = "hi",
    *,
    engine: ScriptedEngine | None = None,
    sampling: Sampling | None = None,
    **config: Any,
) -> AsyncIterator[Client]:
    """A client of an endpoint of its own, over a scripted engine."""
    policy = EnginePolicy(engine or ScriptedEngine(replies=replies), sampling or Sampling(seed=1))
    async with (
        Gateway(**config) as gateway,
        gateway.serve(policy) as endpoint,
        aiohttp.ClientSession() as http,
    ):
        yield Client(http, endpoint, policy)


class Slow(ScriptedEngine):
    """Waits until it is let go; counts what it is asked and what is cancelled."""

    def __init__(self) -> None:
        super().__init__(replies="late")
        self.go = asyncio.Event()
        self.running = self.most = self.cancelled = 0

    async def sample(self, ids: Any, sampling: Sampling) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return await super().sample(ids, sampling)


async def until(condition: Any) -> None:
    """Wait until *condition* holds."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came about")


def check_two_calls_in_a_thread(agent: Callable[[Client], str]) -> None:
    """*agent* asks in a thread of its own until the policy has answered after two calls: one
    conversation, one branch.
    """

    async def run() -> None:
        async with client([CALL, CALL, "5"]) as c:
            assert await asyncio.to_thread(agent, c) == "5"
            assert list(c.branches.values()) == [1]
            assert c.endpoint.requests == 3

    asyncio.run(run())
