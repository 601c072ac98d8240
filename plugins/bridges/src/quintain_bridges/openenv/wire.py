"""The protocol of OpenEnv, as a client speaks it: one WebSocket for each episode."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from quintain.errors import EnvironmentFault, InfrastructureError, PolicyFault
from quintain_engines.http import MOST_BYTES, HttpClient, json_of

KINDS = {"reset": "observation", "step": "observation", "mcp": "mcp"}
"""What answers each request; errors are of the type ``error``."""
END_SECONDS = 1.0
"""That a server may take to end a session."""


class AtCapacity(InfrastructureError):
    """The server has as many sessions as it takes; the episode is tried again."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a server answers to a reset or a step.

    Attributes:
        content: fields of the observation, without its metadata.
        reward: of the step; ``None`` where it gives none.
        done: whether the episode is over.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = None
    done: bool = False


class RemoteSession:
    """An episode on a server.

    Args:
        socket: connected to ``/ws``.
        seconds: that the server may take for an answer.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, seconds: float) -> None:
        self._socket = socket
        self._seconds = seconds
        self._turn = asyncio.Lock()  # calls of one turn of the policy run at once
        # At most one answer is awaited: the second that waits here is one that nobody asked for.
        self._inbox: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue(maxsize=2)
        self._reader = asyncio.create_task(self._read())

    async def reset(self, **parameters: Any) -> Observed:
        """Begin the episode.

        Raises:
            AtCapacity: the server takes no further session.
            EnvironmentFault: the environment raised.
            InfrastructureError: the server did not answer, or not what it was asked.
        """
        return _observed(await self._asked("reset", parameters))

    async def step(self, action: Mapping[str, Any]) -> Observed:
        """Take *action*.

        Raises:
            PolicyFault: the server says that it is no action of the environment.
            As `reset`.
        """
        return _observed(await self._asked("step", action))

    async def tools(self) -> list[Mapping[str, Any]]:
        """Return the MCP tools of the environment, none where it has no MCP."""
        body = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        answer = await self._asked("mcp", body)
        result = answer.get("result") or {}
        listed = result.get("tools", []) if isinstance(result, Mapping) else None
        if not isinstance(listed, list) or not all(
            isinstance(tool, Mapping) and isinstance(tool.get("name"), str) for tool in listed
        ):
            raise InfrastructureError(f"the OpenEnv server lists no tools: {str(answer)[:300]}")
        return listed

    async def end(self) -> None:
        """End the session, and look at what the server has answered besides.

        Raises:
            InfrastructureError: an answer that nobody asked for.
        """
        if not self._socket.closed:
            with suppress(ConnectionError, aiohttp.ClientError):
                await self._socket.send_json({"type": "close"})
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                _refuse_more(await self._inbox.get())

    async def close(self) -> None:
        """End the reading."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            await self._inbox.put(message)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            async with self._turn:
                message = await self._answer(kind, data)
        except TimeoutError as e:
            raise InfrastructureError(
                f"the OpenEnv server gave no answer to {kind!r} within {self._seconds:g} s"
            ) from e
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise InfrastructureError(f"the OpenEnv server ended the session at {kind!r}")
        answer = json_of(message.data, f"the OpenEnv server at {kind!r}")
        told = answer.get("data") if isinstance(answer, Mapping) else None
        answered = answer.get("type") if isinstance(answer, Mapping) else None
        if answered == "error" and isinstance(told, Mapping):
            raise _failure(told, kind)
        if answered != KINDS[kind] or not isinstance(told, Mapping):
            raise InfrastructureError(
                f"the OpenEnv server answered {kind!r} with {message.data[:200]!r}"
            )
        return told

    async def _answer(self, kind: str, data: Mapping[str, Any]) -> aiohttp.WSMessage:
        # Pings do not count: the time is that until the answer.
        async with asyncio.timeout(self._seconds):
            # A server at capacity answers and closes before it is asked.
            if not self._inbox.empty():
                message = self._inbox.get_nowait()
                if kind != "reset":
                    _refuse_more(message)
                return message
            with suppress(ConnectionError, aiohttp.ClientError):
                await self._socket.send_json({"type": kind, "data": dict(data)})
            return await self._inbox.get()


def _refuse_more(message: aiohttp.WSMessage) -> None:
    """Raise an `InfrastructureError` if *message*, which nobody asked for, is an answer: then
    answers, and rewards, may belong to other steps.
    """
    if message.type is aiohttp.WSMsgType.TEXT:
        raise InfrastructureError(
            "the OpenEnv server gave an answer that nobody asked for; which step each reward "
            "belongs to cannot be told"
        )


def _observed(told: Mapping[str, Any]) -> Observed:
    """Return what an answer says of a step.

    Raises:
        InfrastructureError: its observation, reward or end is of another type: text that reads
            ``false`` would be an end.
    """
    observation = told.get("observation", {})
    reward = told.get("reward")
    done = told.get("done", False)
    numeric = reward is None or (type(reward) in (int, float) and math.isfinite(reward))
    if not isinstance(observation, Mapping) or not numeric or not isinstance(done, bool | None):
        raise InfrastructureError(
            f"the OpenEnv server gave a step that cannot be read: {str(told)[:300]}"
        )
    content = {k: v for k, v in observation.items() if k != "metadata"}
    return Observed(
        content=content, reward=None if reward is None else float(reward), done=bool(done)
    )


def _failure(told: Mapping[str, Any], kind: str) -> Exception:
    code, text = told.get("code", ""), str(told.get("message", ""))[:300]
    if code == "CAPACITY_REACHED":
        return AtCapacity(
            f"the OpenEnv server has {told.get('active_sessions')} of {told.get('max_sessions')} "
            "sessions: set `sessions` of the environment to what it takes, or start it with more"
        )
    if code == "VALIDATION_ERROR" and kind == "step":
        return PolicyFault(f"no action of the environment: {told.get('errors', text)}"[:300])
    if code in ("SESSION_ERROR", "FACTORY_ERROR"):
        return InfrastructureError(f"the OpenEnv server has no session: {text}")
    return EnvironmentFault(f"the OpenEnv server failed at {kind!r} ({str(code)[:40]}): {text}")


@asynccontextmanager
async def session(
    url: str, *, seconds: float, limit: asyncio.Semaphore
) -> AsyncIterator[RemoteSession]:
    """Open a session once *limit* allows it, and close it however the episode ends.

    Raises:
        InfrastructureError: nobody answers at *url*.
    """
    async with (
        limit,
        HttpClient(url, seconds=seconds) as client,
        client.websocket("/ws", seconds=seconds, most_bytes=MOST_BYTES) as socket,
    ):
        opened = RemoteSession(socket, seconds)
        try:
            yield opened
            await opened.end()
        finally:
            await opened.close()
