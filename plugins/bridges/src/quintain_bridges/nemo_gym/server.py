"""A resources server of NeMo-Gym, as one episode sees it: a session, tools, and a verifier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from quintain.errors import EnvironmentFault, InfrastructureError, ToolError
from quintain_engines.http import HttpClient, json_of

PASSING = frozenset({401, 403, 404, 408, 409, 425, 429})
"""Statuses below 500 that say nothing about the arguments of a call."""
MOST_BYTES = 16_000_000
"""Of an answer."""


class GymSession:
    """A session, which a cookie names.

    Args:
        client: of the server, with the cookie.
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of a tool as text.

        Raises:
            ToolError: the server refuses the arguments.
            InfrastructureError: it failed, or did not answer.
        """
        status, text, _ = await self._client.send("POST", f"/{name}", json=dict(arguments))
        if 200 <= status < 300:
            return text
        if 400 <= status < 500 and status not in PASSING:
            raise ToolError(text[:1000])
        raise InfrastructureError(
            f"NeMo-Gym answered the call of the tool {name!r} with {status}: {text[:300]}"
        )

    async def asked(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a request of the protocol.

        Raises:
            EnvironmentFault: the server refuses the row.
            InfrastructureError: it failed, did not answer, or answered no JSON object.
        """
        status, text, _ = await self._client.send("POST", f"/{path}", json=dict(body))
        if status != 200:
            refuses = 400 <= status < 500 and status not in PASSING
            kind = EnvironmentFault if refuses else InfrastructureError
            raise kind(f"NeMo-Gym answered /{path} with {status}: {text[:300]}")
        answer = json_of(text, f"/{path} of NeMo-Gym")
        if not isinstance(answer, Mapping):
            raise InfrastructureError(f"NeMo-Gym answered /{path} with no object: {text[:300]}")
        return answer


@asynccontextmanager
async def gym_session(
    url: str, row: Mapping[str, Any], *, seconds: float
) -> AsyncIterator[GymSession]:
    """Open a session for *row*.

    Raises:
        As `GymSession.asked`.
    """
    async with HttpClient(url, seconds=seconds, most_bytes=MOST_BYTES, cookies=True) as client:
        session = GymSession(client)
        await session.asked("seed_session", row)
        yield session
