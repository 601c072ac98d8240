"""A taskset and an environment of verifiers 0.4, which play an environment of Quintain.

The environment is the user: it asks, the policy of verifiers replies, and the reward of Quintain is
the reward of the trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from quintain import Environment, Rollout, Task
from quintain.errors import EnvironmentFault, UsageError
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.services import BY_OPTION, started_services
from quintain_authoring import Asked, Stepwise, services_of

from .episode_server import EpisodeServer
from .exchange import PlayerExchange

REWARD = "quintain"
"""Name of the reward of a trace."""


class QuintainConfig(vf.TasksetConfig):
    """Which environment, and which of its tasks.

    Attributes:
        environment: its name, ``module:Class`` or ``path/to/file.py:Class``.
        args: its fields.
        services: components by slot, where a slot is not filled by the component of its name.
        split: of the tasks.
        count: tasks at most, as some environments never end.
    """

    environment: str = ""
    args: dict[str, Any] = Field(default_factory=dict)
    services: dict[str, str] = Field(default_factory=dict)
    split: str = "train"
    count: int = 10_000


class QuintainData(vf.TaskData):
    """A task by its number. What the policy reads comes turn by turn.

    Attributes:
        index: in the split of the environment.
    """

    index: int


class QuintainTask(vf.Task[QuintainData]):
    """A task of an environment of Quintain."""


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """The environment that a configuration names, its started services, and the tasks of the
    split.
    """

    environment: Environment[Any, Any]
    services: Mapping[str, Any]
    tasks: Sequence[Task]


@asynccontextmanager
async def hosted(config: QuintainConfig) -> AsyncIterator[Hosted]:
    """Start the services of the environment that *config* names, make it and read its tasks.

    Raises:
        UsageError: there is no such environment, or it has no tasks.
    """
    if not config.environment:
        raise UsageError("name an environment: --env.taskset.environment NAME")
    spec = EnvironmentSpec.of(EnvironmentTable(use=config.environment, args=dict(config.args)))
    choices = services_of([f"{slot}={use}" for slot, use in config.services.items()], [])
    async with started_services(choices, spec.slots, {}, fix=BY_OPTION) as services:
        environment = spec.make(services)
        tasks = list(islice(environment.tasks(config.split), config.count))
        if not tasks:
            raise UsageError(f"{config.environment} has no tasks in {config.split!r}")
        yield Hosted(environment=environment, services=services, tasks=tasks)


class QuintainTaskset(vf.Taskset[QuintainTask, QuintainConfig]):
    """The tasks of a split. Their prompts are what the environment asks first, which is only known
    in an episode.
    """

    def load(self) -> Iterator[QuintainTask]:
        """Yield a task for each of the environment's.

        Raises:
            UsageError: there is no such environment, or it has no tasks.
        """

        async def listed() -> tuple[Sequence[Task], str]:
            async with hosted(self.config) as found:
                return found.tasks, found.environment.system

        with ThreadPoolExecutor(1) as thread:  # verifiers may call this inside its event loop
            tasks, system = thread.submit(asyncio.run, listed()).result()
        for index, task in enumerate(tasks):
            data = QuintainData(
                id=str(task.id),
                name=f"{self.config.environment}-{self.config.split}-{task.id}",
                system_prompt=system or None,
                index=index,
            )
            yield QuintainTask(data, self.config.task)


class QuintainEnvConfig(vf.EnvConfig):
    """Who plays: a chat without tools of its own."""

    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class QuintainEnv(vf.Env[QuintainEnvConfig]):
    """Plays the episodes of the environment, which is the user of the exchange. Each player has an
    exchange of its own, and so a trace.
    """

    async def start(self) -> None:
        """Start the services of the environment, and the server of its tools."""
        self._running = AsyncExitStack()
        self._hosted = await self._running.enter_async_context(hosted(self.taskset.config))
        self._server = await self._running.enter_async_context(EpisodeServer())

    async def stop(self) -> None:
        """End them."""
        await self._running.aclose()

    async def run(self, task: QuintainTask, agents: Any) -> None:
        """Play one episode, and record the rewards of the players, and the parts of the first
        one's.

        Raises:
            EnvironmentFault: the environment failed, or gave tools to a player that had none.
        """
        environment = self._hosted.environment
        chosen = self._hosted.tasks[task.data.index]
        exchanges: dict[str, PlayerExchange] = {}
        async with (
            Stepwise(environment, chosen, self._hosted.services) as episode,
            AsyncExitStack() as running,
        ):
            state = await episode.next()
            while not isinstance(state, Rollout):
                name = state.player
                if name not in exchanges:
                    opened = self._exchange(task, agents, episode, state)
                    exchanges[name] = await running.enter_async_context(opened)
                ended, state = await exchanges[name].turn(state)
                if ended:
                    break
        for name, exchange in exchanges.items():
            exchange.trace.info["player"] = name
        if not isinstance(state, Rollout):
            for exchange in exchanges.values():
                if not exchange.trace.errors:  # a limit of verifiers ended it, hence the policy
                    exchange.trace.record_reward(REWARD, float(environment.early))
            return
        if state.outcome is None:
            raise EnvironmentFault(f"the episode failed: {state.termination.reason}")
        for name, exchange in exchanges.items():
            exchange.trace.record_reward(REWARD, state.outcome.of_player(name))
        if "" in exchanges:
            exchanges[""].trace.record_metrics(dict(state.outcome.parts))
            exchanges[""].trace.info[REWARD] = state.outcome.reason

    @asynccontextmanager
    async def _exchange(
        self, task: QuintainTask, agents: Any, episode: Stepwise, first: Asked
    ) -> AsyncIterator[PlayerExchange]:
        """Open the exchange of the player that is asked *first*."""
        system = next((m.content for m in first.messages if m.role == "system"), None)
        if first.player:
            task = task.with_data(system_prompt=system)
        exchange = PlayerExchange(episode, task.data)
        tools = self._server.tools_of(exchange) if first.tools else {}
        try:
            async with agents.player.interaction(task, tools=tools or None) as interaction:
                exchange.begin(interaction, bool(tools))
                yield exchange
        finally:
            self._server.forget(exchange)
