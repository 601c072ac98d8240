"""The service: one HTTP server for all episodes of a run, and an endpoint for each."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Self

from quintain import InfrastructureError, LimitReached, Service
from quintain.errors import EnvironmentFault, UsageError

from .endpoint import Endpoint
from .request import Policy
from .server import Server
from .sessions import SessionPolicy

_log = logging.getLogger("quintain.gateway")


class Gateway(Service):
    """Gives each episode an endpoint whose requests, in the APIs of OpenAI and Anthropic, the policy
    answers.

    ::

        async with self.gateway.endpoint(agent) as endpoint:
            client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)

    Args:
        host, port: to listen on; port 0 takes a free one.
        remote: allow a host that other machines reach.
        concurrency: requests of one episode that are sampled at once; further ones wait.
        queue: requests of one episode that wait or are sampled; further ones get 429.
        max_bytes: size of a request's body.

    Raises:
        UsageError: a number out of its range, or a host that other machines reach without *remote*.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        remote: bool = False,
        concurrency: int = 64,
        queue: int = 1024,
        max_bytes: int = 16_000_000,
    ) -> None:
        for name, value in (
            ("concurrency", concurrency),
            ("queue", queue),
            ("max_bytes", max_bytes),
        ):
            if value < 1:  # no request would ever be answered
                raise UsageError(f"gateway: {name} is {value}; expected at least 1")
        self._server = Server(host=host, port=port, remote=remote, max_bytes=max_bytes)
        self.max_bytes = max_bytes
        self._concurrency, self._queue = concurrency, queue
        self._warned = False

    @property
    def base_url(self) -> str:
        """Of the API, up to and including ``/v1``."""
        return self._server.base_url

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.__aexit__(*exc)

    @asynccontextmanager
    async def endpoint(self, agent: Any, *, acts: bool = True) -> AsyncIterator[Endpoint]:
        """Open an endpoint for the time of the block, which the episode's own task must enter.

        The first conversation that is opened is *agent*'s own; each further one is another
        conversation of the same player.

        Args:
            acts: the program behind the endpoint carries out what the policy says, so its time from
                a turn to its next request is the policy's (`Agent.policy_time`).

        Raises:
            InfrastructureError: at the end, if the engine failed a request and no later one
                repaired it, whatever the agent made of it.
            LimitReached: at the end, if a request met a limit and the block raised for it.
        """
        policy = SessionPolicy(agent)
        async with self.serve(policy, agent.policy_time if acts else nullcontext) as endpoint:
            try:
                yield endpoint
            except Exception as e:
                await self._server.end(endpoint)
                _raise_failure(endpoint)
                if endpoint.limit is not None:
                    raise LimitReached(endpoint.limit.limit, str(endpoint.limit)) from e
                raise
            finally:
                self._report(agent, endpoint)
            await self._server.end(endpoint)
            _raise_failure(endpoint)
            if endpoint.limit is not None:
                await policy.mark_limit()

    def _report(self, agent: Any, endpoint: Endpoint) -> None:
        threads, rewritten = endpoint.threads, endpoint.rewritten
        agent.metric(
            gateway_requests=endpoint.requests, gateway_threads=threads, gateway_rewritten=rewritten
        )
        if rewritten and not self._warned:
            self._warned = True
            _log.warning(
                "gateway: %d conversations in an episode of %d turns: the agent rewrites its "
                "history. All versions are one sample, and each is computed anew; "
                "docs/gateway.md#conversations says what keeps one",
                *(threads, endpoint.turns),
            )

    @asynccontextmanager
    async def serve(
        self, policy: Policy, policy_time: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> AsyncIterator[Endpoint]:
        """Open an endpoint over any *policy*, for the time of the block or until the task that
        entered it ends. The agent acts on a turn within *policy_time*.
        """
        key = secrets.token_urlsafe(16)
        endpoint = Endpoint(
            policy,
            self.base_url,
            key,
            concurrency=self._concurrency,
            queue=self._queue,
            policy_time=policy_time,
        )
        self._server.add(endpoint)
        loop, owner = asyncio.get_running_loop(), asyncio.current_task()

        def abandoned(task: asyncio.Task[Any]) -> None:
            if not endpoint.closed and not loop.is_closed():
                loop.create_task(self._server.end(endpoint))

        if owner is not None:
            owner.add_done_callback(abandoned)
        try:
            yield endpoint
        finally:
            if owner is not None:
                owner.remove_done_callback(abandoned)
            await self._server.end(endpoint)


def _raise_failure(endpoint: Endpoint) -> None:
    failure = endpoint.failure
    if failure is None:
        return
    if isinstance(failure, (InfrastructureError, EnvironmentFault)):
        raise failure
    raise InfrastructureError(
        f"the gateway failed: {type(failure).__name__}: {failure}"
    ) from failure
