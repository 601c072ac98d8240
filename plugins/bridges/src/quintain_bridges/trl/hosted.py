"""An environment of Quintain for TRL's `GRPOTrainer`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any, TypeVar

from quintain import Reply, Rollout, Task
from quintain.errors import EnvironmentFault, UsageError
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.services import BY_OPTION, Choice, started_services
from quintain_authoring import Stepwise

from .episode import TRLEpisode, episode_class, finish

T = TypeVar("T")


class InTRL:
    """An environment whose episodes TRL plays.

    Its coroutines run in a thread of their own, in which its services are started. `close` ends
    both.

    Args:
        use: the name of an environment, as in a recipe.
        args: its fields.
        services: what fills its slots, as in a recipe.

    Raises:
        UsageError: the environment or a service is wrong.
    """

    def __init__(
        self,
        use: str,
        *,
        args: Mapping[str, Any] | None = None,
        services: Mapping[str, Choice] | None = None,
    ) -> None:
        spec = EnvironmentSpec.of(EnvironmentTable(use=use, args=dict(args or {})))
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"TRL {use}", daemon=True
        )
        self._thread.start()
        started = started_services(services or {}, spec.slots, {}, fix=BY_OPTION)
        self.services = self.run(self._stack.enter_async_context(started))
        self.environment = spec.make(self.services)
        self._tasks: dict[tuple[str, int], Task] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* in the thread of the environment."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End episodes that still wait for a reply, the services, and the thread."""
        self.run(self._ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def rows(self, split: str, count: int | None = None) -> Any:
        """Return a `datasets.Dataset` with a row for each of the first *count* tasks: ``prompt`` as
        messages, ``split`` and ``index``.

        The prompt is what the policy is first asked in an episode, which need not be the prompt of
        the task.
        """
        from datasets import Dataset

        rows = []
        for index, task in enumerate(islice(self.environment.tasks(split), count)):
            self._tasks[split, index] = task
            asked = self.run(self._first(task))
            messages = [{"role": m.role, "content": m.content} for m in asked]
            rows.append({"prompt": messages, "split": split, "index": index})
        return Dataset.from_list(rows)

    def reward(
        self,
        completions: Sequence[Any],
        split: Sequence[str],
        index: Sequence[int],
        **_: Any,
    ) -> list[float | None]:
        """Score replies to rows of `rows`, for ``reward_funcs``; ``None``, which TRL leaves out,
        where the environment failed.

        It is for episodes of one turn: a further turn is an error.

        Raises:
            EnvironmentFault: the environment asks for a further turn.
        """
        texts = [c if isinstance(c, str) else str(c[-1]["content"]) for c in completions]

        async def scored() -> list[float | None]:
            return await asyncio.gather(
                *(self._replied(*row) for row in zip(split, index, texts, strict=True))
            )

        return self.run(scored())

    def factory(self) -> type[TRLEpisode]:
        """Return the class for ``environment_factory``, whose tools are those of the first task; an
        environment without tools has the tool ``reply``.

        A row of the data set that names ``split`` and ``index`` chooses the task.
        """
        return episode_class(self)

    def episode_reward(
        self, completions: Sequence[Any], environments: Sequence[TRLEpisode], **_: Any
    ) -> list[float | None]:
        """Score the episodes of `factory`, for ``reward_funcs``: the last message, without a call,
        is the last reply of the policy. ``None`` where the environment failed.
        """
        texts = [c[-1]["content"] if c[-1]["role"] == "assistant" else "" for c in completions]
        return [finish(episode, text) for episode, text in zip(environments, texts, strict=True)]

    def task(self, split: str, index: int) -> Task:
        """Return a task by its number.

        Raises:
            UsageError: the split has fewer.
        """
        if (split, index) not in self._tasks:
            for number, task in enumerate(islice(self.environment.tasks(split), index + 1)):
                self._tasks[split, number] = task
        if (split, index) not in self._tasks:
            raise UsageError(f"{type(self.environment).__name__} has no task {index} in {split!r}")
        return self._tasks[split, index]

    async def _ended(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._stack.aclose()

    async def _first(self, task: Task) -> Sequence[Any]:
        async with Stepwise(self.environment, task, self.services) as episode:
            asked = await episode.next()
            if isinstance(asked, Rollout):
                raise EnvironmentFault(f"the episode asks nothing: {asked.termination.reason}")
            return asked.messages

    async def _replied(self, split: str, index: int, text: str) -> float | None:
        async with Stepwise(self.environment, self.task(split, index), self.services) as episode:
            await episode.next()
            ended = await episode.next(Reply(text=text))
            if not isinstance(ended, Rollout):
                raise EnvironmentFault(
                    f"{type(self.environment).__name__} has several turns; use `factory` and "
                    "`episode_reward`"
                )
            return None if ended.outcome is None else ended.outcome.total
