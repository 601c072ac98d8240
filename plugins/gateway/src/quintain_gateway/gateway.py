"""The service: one HTTP server for all episodes of a run, and an endpoint for each."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Self

from quintain import InfrastructureError, LimitReached, Service
from quintain.errors import EnvironmentFault, UsageError

from .endpoint import Endpoint
from .forwarding import ForwardedModels
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
        models: names that an agent has for the policy; empty means any name.
        other_models: who answers to other names, such as those of a simulated user or a judge
            within the agent's program: ``"untrained"``, the engine of the policy, in the record of
            the episode but never trained; ``"refuse"``, nobody; or a server, by the settings of
            the engine ``openai``, ``{"base_url": "https://..."}``, in the record as well.

    Raises:
        UsageError: a number out of its range, a host that other machines reach without *remote*,
            another word in *other_models*, or a server without *models*.
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
        models: Sequence[str] = (),
        other_models: str | Mapping[str, Any] = "untrained",
    ) -> None:
        self._forwarded: ForwardedModels | None = None
        if isinstance(models, str):
            models = [models]
        if isinstance(other_models, Mapping):
            if not models:
                raise UsageError(
                    "gateway: other_models is a server, and without models each name is the "
                    'policy\'s; name those that are: models = ["policy"]'
                )
            self._forwarded = ForwardedModels(other_models)
        elif other_models not in ("untrained", "refuse"):
            raise UsageError(
                f'gateway: other_models is {other_models!r}; expected "untrained", "refuse" or a '
                'server: { base_url = "https://..." }'
            )
        for name, value in (
            ("concurrency", concurrency),
            ("queue", queue),
            ("max_bytes", max_bytes),
        ):
            if value < 1:  # no request would ever be answered
                raise UsageError(f"gateway: {name} is {value}; expected at least 1")
        self._models, self._other_models = tuple(models), other_models
        listed = self._models or ("default",)
        self._server = Server(
            host=host, port=port, remote=remote, max_bytes=max_bytes, models=listed
        )
        self.max_bytes = max_bytes
        self._concurrency, self._queue = concurrency, queue
        self._warned: set[str] = set()

    @property
    def base_url(self) -> str:
        """Of the API, up to and including ``/v1``."""
        return self._server.base_url

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._server.__aexit__(*exc)
        finally:
            if self._forwarded is not None:
                await self._forwarded.close()

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
        policy = SessionPolicy(agent, self._forwarded)
        policy_time = agent.policy_time if acts else nullcontext
        other = None if self._other_models == "refuse" else policy.untrained
        async with self.serve(policy, policy_time, other) as endpoint:
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
        if rewritten:
            self._warn_once(
                "rewritten",
                f"{threads} conversations in an episode of {endpoint.turns} turns: the agent "
                "rewrites its history. All versions are one sample, and each is computed anew; "
                "docs/gateway.md#conversations says what keeps one",
            )
        if endpoint.foreign:
            self._warn_once(
                "foreign",
                "the first request of an episode has turns of an assistant that the policy did not "
                "take: they are context, and do not train",
            )
        if len(endpoint.models) > 1 and not self._models:
            names = ", ".join(endpoint.models)
            self._warn_once(
                "models",
                f"one episode asks for the models {names}: the policy answers to each name, and "
                "all its turns train with the reward of the episode. `models` of the gateway names "
                "those that are the policy; docs/gateway.md#models",
            )

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("gateway: %s", message)

    @asynccontextmanager
    async def serve(
        self,
        policy: Policy,
        policy_time: Callable[[], AbstractContextManager[None]] = nullcontext,
        other: Callable[[str], Policy] | None = None,
    ) -> AsyncIterator[Endpoint]:
        """Open an endpoint over any *policy*, for the time of the block or until the task that
        entered it ends. The agent acts on a turn within *policy_time*; *other* returns what answers
        to the name of another model.
        """
        key = secrets.token_urlsafe(16)
        endpoint = Endpoint(
            policy,
            self.base_url,
            key,
            concurrency=self._concurrency,
            queue=self._queue,
            policy_time=policy_time,
            names=self._models,
            other=other,
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
