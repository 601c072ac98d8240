"""Episodes turn by turn for another program. In `Environment.rollout` the environment asks the
policy for a turn. Here the other program asks the environment what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from quintain import Engine, Environment, Message, Reply, Rollout, Sampling, Task, ToolSpec
from quintain.errors import EnvironmentFault, UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A turn that the other program has to take.

    Attributes:
        player: whose turn it is; ``""`` is the first.
        messages: of the conversation of that player since its last turn.
        tools: that the turn may call.
    """

    player: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


class _Waiting(Engine):
    """Hands each turn to the other program, and waits for its reply."""

    name = "another program"

    def __init__(self, episode: Stepwise, player: str = "") -> None:
        self._episode = episode
        self._player = player

    def for_player(self, name: str) -> _Waiting:
        return _Waiting(self._episode, name)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        return await self._episode._answered(self._player, messages, tools)


class Stepwise:
    """An episode of *task*, as ``async with``; at the end what still runs of it is cancelled.

    Args:
        environment: with its services.
        services: started, for the rewards.
        seed: of the random numbers of the episode.
    """

    def __init__(
        self,
        environment: Environment[Any, Any],
        task: Task,
        services: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._environment, self._task = environment, task
        self._services, self._seed = services or {}, seed
        self._questions: asyncio.Queue[Asked] = asyncio.Queue()
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self._read: dict[str, int] = {}
        self._turn = asyncio.Lock()  # players that are asked at once take turns
        self._play: asyncio.Task[Rollout[Any, Any]] | None = None
        self._returned = False  # the episode, to the caller

    async def __aenter__(self) -> Self:
        self._play = asyncio.create_task(self._played())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._play is not None:
            self._play.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._play

    async def next(self, reply: Reply | None = None) -> Asked | Rollout[Any, Any]:
        """Give *reply* to the last question, if there was one. Return the next question, or the
        episode, which is scored, where it ended. It may have ended by its limit of time while its
        question waited: then it has failed, and the reply is not read.

        Raises:
            UsageError: the recipe or the code of the environment is wrong.
            EnvironmentFault: the episode is over, or not yet begun.
        """
        if self._play is None or self._returned:
            raise EnvironmentFault("the episode is over; begin another one")
        if reply is not None:
            self._replies.put_nowait(reply)
        question = asyncio.create_task(self._questions.get())
        await asyncio.wait({question, self._play}, return_when=asyncio.FIRST_COMPLETED)
        if question.done():
            return question.result()
        question.cancel()
        self._returned = True
        return self._play.result()

    async def _played(self) -> Rollout[Any, Any]:
        request = RolloutRequest(
            environment=self._environment,
            task=self._task,
            group_size=1,
            index=0,
            seed=self._seed,
            name=type(self._environment).__name__,
        )
        context = RolloutContext(engine=_Waiting(self), services=self._services, retries=0)
        (group,) = await run_groups([request], context)
        (rollout,) = group.rollouts
        return rollout

    async def _answered(
        self, player: str, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Reply:
        async with self._turn:
            # what the player has read ends with its own last reply
            known = self._read.get(player, 0)
            new = [m for m in messages[known:] if m.role != "assistant"]
            self._read[player] = len(messages)
            self._questions.put_nowait(
                Asked(player=player, messages=tuple(new), tools=tuple(tools))
            )
            return await self._replies.get()


def task_at(environment: Environment[Any, Any], split: str, index: int) -> Task:
    """Return task number *index* of *split*, from 0. It counts them, as a split may be endless.

    Raises:
        UsageError: the split has fewer.
    """
    for number, task in enumerate(environment.tasks(split)):
        if number == index:
            found: Task = task  # the tasks of Environment[Any, Any] are Any
            return found
    raise UsageError(f"{type(environment).__name__} has no task {index} in {split!r}")
