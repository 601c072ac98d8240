"""A taskset and an environment of verifiers 0.4, which play an environment of Quintain.

The environment is the user: it asks, the policy of verifiers replies, and the reward of Quintain is
the reward of the trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from quintain import Message, Reply, Rollout, Task
from quintain.errors import EnvironmentFault, UsageError
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.services import BY_OPTION, started_services
from quintain_authoring import Stepwise

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
class Chosen:
    """A component that fills a slot."""

    use: str
    args: dict[str, Any] = field(default_factory=dict)


class Hosted:
    """The environment that a configuration names, with its services, as ``async with``.

    Attributes:
        environment: once it has begun.
        tasks: those of the split.
    """

    def __init__(self, config: QuintainConfig) -> None:
        if not config.environment:
            raise UsageError("name an environment: --env.taskset.environment NAME")
        table = EnvironmentTable(use=config.environment, args=dict(config.args))
        self._spec, self._config = EnvironmentSpec.of(table), config
        self._stack = AsyncExitStack()
        self.environment: Any = None
        self.services: dict[str, Any] = {}
        self.tasks: list[Task] = []

    async def __aenter__(self) -> Hosted:
        choices = {slot: Chosen(use=use) for slot, use in self._config.services.items()}
        started = started_services(choices, self._spec.slots, {}, fix=BY_OPTION)
        self.services = await self._stack.enter_async_context(started)
        self.environment = self._spec.make(self.services)
        tasks = self.environment.tasks(self._config.split)
        self.tasks = list(islice(tasks, self._config.count))
        if not self.tasks:
            raise UsageError(f"{self._config.environment} has no tasks in {self._config.split!r}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


class QuintainTaskset(vf.Taskset[QuintainTask, QuintainConfig]):
    """The tasks of a split. Their prompts are what the environment asks first, which is only known
    in an episode.
    """

    def load(self) -> Iterator[QuintainTask]:
        """Yield a task for each of the environment's.

        Raises:
            UsageError: there is no such environment, or it has no tasks.
        """

        async def listed() -> tuple[list[Task], str]:
            async with Hosted(self.config) as hosted:
                return hosted.tasks, hosted.environment.system

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
    """Plays the episodes of the environment, which is the user of the exchange."""

    async def start(self) -> None:
        """Start the services of the environment."""
        self._hosted = Hosted(self.taskset.config)
        await self._hosted.__aenter__()

    async def stop(self) -> None:
        """End them."""
        await self._hosted.__aexit__()

    async def run(self, task: QuintainTask, agents: Any) -> None:
        """Play one episode, and record its reward and the parts of it.

        Raises:
            EnvironmentFault: the environment failed, has tools, or has several players.
        """
        hosted = self._hosted
        chosen = hosted.tasks[task.data.index]
        async with Stepwise(hosted.environment, chosen, hosted.services) as episode:
            state = await episode.next()
            async with agents.player.interaction(task) as interaction:
                while not isinstance(state, Rollout):
                    if state.tools or state.player:
                        raise EnvironmentFault(
                            f"{hosted.environment.name} has "
                            f"{'tools' if state.tools else 'several players'}, which verifiers gets "
                            "by its taskset openenv alone: `quintain openenv` serves it"
                        )
                    segment = await interaction.turn(text_of(state.messages, task.data))
                    if segment.terminated:
                        break
                    state = await episode.next(Reply(text=segment.last_reply))
        trace = interaction.trace
        if not isinstance(state, Rollout):
            if not trace.errors:  # a limit of verifiers ended it, hence the policy
                trace.record_reward(REWARD, float(hosted.environment.early))
            return
        if state.outcome is None:
            raise EnvironmentFault(f"the episode failed: {state.termination.reason}")
        trace.record_reward(REWARD, state.outcome.total)
        trace.record_metrics(dict(state.outcome.parts))
        trace.info[REWARD] = state.outcome.reason


def text_of(messages: Sequence[Message], data: vf.TaskData) -> str:
    """Return messages as one message of the user, without the system prompt that the task has."""
    shown = [m for m in messages if m.role != "system" or m.content != data.system_prompt]
    if len(shown) == 1:
        return shown[0].content
    return "\n\n".join(f"{m.role}: {m.content}" if m.role != "user" else m.content for m in shown)
