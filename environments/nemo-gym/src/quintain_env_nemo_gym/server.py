"""A resources server of NeMo-Gym, as one episode sees it: a session, tools, and a verifier."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from quintain.errors import EnvironmentFault, InfrastructureError, ToolError


class GymSession:
    """A session, which a cookie names.

    Args:
        client: with the cookie.
        url: of the server.
    """

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client, self._url = client, url.rstrip("/")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of a tool as text.

        Raises:
            ToolError: the server refuses the arguments.
            EnvironmentFault: it failed.
            InfrastructureError: it did not answer.
        """
        status, text = await self._posted(name, arguments)
        if 400 <= status < 500:
            raise ToolError(text[:1000])
        if status >= 500:
            raise EnvironmentFault(f"NeMo-Gym failed in the tool {name!r}: {text[:300]}")
        return text

    async def asked(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a request of the protocol.

        Raises:
            EnvironmentFault: the server refuses it, or failed.
            InfrastructureError: it did not answer.
        """
        status, text = await self._posted(path, body)
        if status != 200:
            raise EnvironmentFault(f"NeMo-Gym answered /{path} with {status}: {text[:300]}")
        answer: Mapping[str, Any] = json.loads(text)
        return answer

    async def _posted(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        try:
            async with self._client.post(f"{self._url}/{path}", json=dict(body)) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise InfrastructureError(
                f"no resources server of NeMo-Gym answers at {self._url}: {type(e).__name__}: {e}"
            ) from e


@asynccontextmanager
async def gym_session(
    url: str, row: Mapping[str, Any], *, seconds: float
) -> AsyncIterator[GymSession]:
    """Open a session for *row*.

    Raises:
        As `GymSession.asked`.
    """
    jar = aiohttp.CookieJar(unsafe=True)  # addresses without a name have cookies, too
    limit = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=limit) as client:
        session = GymSession(client, url)
        await session.asked("seed_session", row)
        yield session
