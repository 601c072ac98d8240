"""The protocol of OpenEnv, as a client speaks it: one WebSocket for each episode."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from quintain.errors import EnvironmentFault, InfrastructureError, PolicyFault

LARGEST = 100 << 20
"""Bytes of a message at most, as OpenEnv's own client has it."""


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

    async def reset(self, **parameters: Any) -> Observed:
        """Begin the episode.

        Raises:
            AtCapacity: the server takes no further session.
            EnvironmentFault: the environment raised.
            InfrastructureError: the server did not answer.
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
        return list((answer.get("result") or {}).get("tools", ()))

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            async with self._turn:
                message = await self._answer(kind, data)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as e:
            raise InfrastructureError(
                f"the OpenEnv server gave no answer to {kind!r}: {type(e).__name__}: {e}"
            ) from e
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise InfrastructureError(f"the OpenEnv server ended the session at {kind!r}")
        answer = json.loads(message.data)
        told: Mapping[str, Any] = answer.get("data") or {}
        if answer.get("type") == "error":
            raise _failure(told, kind)
        return told

    async def _answer(self, kind: str, data: Mapping[str, Any]) -> aiohttp.WSMessage:
        # a server at capacity answers and closes before it is asked
        with contextlib.suppress(ConnectionError):
            await self._socket.send_json({"type": kind, "data": dict(data)})
        return await self._socket.receive(self._seconds)


def _observed(told: Mapping[str, Any]) -> Observed:
    content = {k: v for k, v in (told.get("observation") or {}).items() if k != "metadata"}
    reward = told.get("reward")
    return Observed(
        content=content,
        reward=None if reward is None else float(reward),
        done=bool(told.get("done")),
    )


def _failure(told: Mapping[str, Any], kind: str) -> Exception:
    code, text = told.get("code", ""), str(told.get("message", ""))
    if code == "CAPACITY_REACHED":
        return AtCapacity(
            f"the OpenEnv server has {told.get('active_sessions')} of {told.get('max_sessions')} "
            "sessions: set `sessions` of the environment to what it takes, or start it with more"
        )
    if code == "VALIDATION_ERROR" and kind == "step":
        return PolicyFault(f"no action of the environment: {told.get('errors', text)}"[:300])
    if code in ("SESSION_ERROR", "FACTORY_ERROR"):
        return InfrastructureError(f"the OpenEnv server has no session: {text}")
    return EnvironmentFault(f"the OpenEnv server failed at {kind!r} ({code}): {text}")


@asynccontextmanager
async def session(
    url: str, *, seconds: float, limit: asyncio.Semaphore
) -> AsyncIterator[RemoteSession]:
    """Open a session once *limit* allows it, and close it however the episode ends.

    Raises:
        InfrastructureError: nobody answers at *url*.
    """
    async with limit, aiohttp.ClientSession() as client:
        try:
            socket = await client.ws_connect(f"{url.rstrip('/')}/ws", max_msg_size=LARGEST)
        except (aiohttp.ClientError, OSError) as e:
            raise InfrastructureError(f"no OpenEnv server answers at {url}: {e}") from e
        async with socket:
            yield RemoteSession(socket, seconds)
            if not socket.closed:
                await socket.send_json({"type": "close"})
