"""The tasks of a Quintain environment as a data set of the cookbook."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import chz
from tinker_cookbook import model_info
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from ..trl import InTRL
from .episode import CookbookEpisode

__all__ = ["QuintainDatasetBuilder"]


@dataclass(frozen=True, kw_only=True)
class NamedEnvironment:
    """An environment by its name, and how a model reads it. It can be pickled, and each process that
    uses it has the environment once.

    Attributes:
        use: name of the environment.
        settings: its fields and services, as JSON.
        model, renderer: names of the tokenizer and of the renderer.
    """

    use: str
    settings: str
    model: str
    renderer: str

    def host(self) -> InTRL:
        return _host(self.use, self.settings)


@cache
def _host(use: str, settings: str) -> InTRL:
    return InTRL(use, **json.loads(settings))


@dataclass
class QuintainGroup(EnvGroupBuilder):
    """The episodes of one task."""

    played: NamedEnvironment
    split: str
    index: int
    group_size: int
    _episodes: list[CookbookEpisode] = field(default_factory=list)

    async def make_envs(self) -> Sequence[Env]:
        renderer = get_renderer(self.played.renderer, get_tokenizer(self.played.model))
        host = await asyncio.to_thread(self.played.host)
        self._episodes = [
            CookbookEpisode(host, self.split, self.index, number=number, renderer=renderer)
            for number in range(self.group_size)
        ]
        return self._episodes

    async def cleanup(self) -> None:
        episodes, self._episodes = self._episodes, []
        for episode in episodes:
            await episode.close()

    def logging_tags(self) -> list[str]:
        return [self.played.use]


class QuintainDataset(RLDataset):
    """The tasks of a split, from its first in each pass."""

    def __init__(
        self,
        played: NamedEnvironment,
        split: str,
        *,
        batches: int,
        batch_size: int,
        group_size: int,
    ) -> None:
        self._played, self._split = played, split
        self._batches, self._batch_size, self._group_size = batches, batch_size, group_size
        tasks = played.host().environment.tasks(split)
        self._tasks = sum(1 for _ in islice(tasks, batches * batch_size))

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        first = index * self._batch_size
        return [
            QuintainGroup(self._played, self._split, number % self._tasks, self._group_size)
            for number in range(first, first + self._batch_size)
        ]

    def __len__(self) -> int:
        return self._batches


@chz.chz
class QuintainDatasetBuilder(RLDatasetBuilder):
    """An environment for the ``dataset_builder`` of a config of `tinker_cookbook.rl.train`.

    Attributes:
        environment: its name, as in a recipe, or ``FILE:Class``.
        args: its fields.
        services: what fills its slots, as in a recipe.
        model_name_for_tokenizer, renderer_name: as of the cookbook's own builders.
        batch_size: tasks of a step.
        group_size: episodes of a task.
        n_batches: steps. An endless split is cut there, and a shorter one begins again.
        test_tasks: tasks of the split ``test`` for evaluation; 0 is none.
    """

    environment: str
    model_name_for_tokenizer: str
    batch_size: int
    group_size: int
    n_batches: int
    renderer_name: str | None = None
    args: Mapping[str, Any] = chz.field(default_factory=dict)
    services: Mapping[str, Any] = chz.field(default_factory=dict)
    test_tasks: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the data sets.

        Raises:
            UsageError: the environment or a service is wrong.
        """
        name = self.model_name_for_tokenizer
        renderer = self.renderer_name or model_info.get_recommended_renderer_name(name)
        settings = json.dumps({"args": dict(self.args), "services": dict(self.services) or None})
        played = NamedEnvironment(
            use=self.environment, settings=settings, model=name, renderer=renderer
        )
        train = await asyncio.to_thread(
            QuintainDataset, played, "train", batches=self.n_batches, batch_size=self.batch_size,
            group_size=self.group_size,
        )  # fmt: skip
        if not self.test_tasks:
            return train, None
        test = await asyncio.to_thread(
            QuintainDataset, played, "test", batches=1, batch_size=self.test_tasks, group_size=1
        )
        return train, test
