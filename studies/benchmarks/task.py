"""The vowel task of `shapes` as Quintain sees it, and an engine whose replies have the
lengths both sides agreed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quintain import Environment, Rollout, Task, reward
from quintain.engine.embedded import EmbeddedEngine
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from . import shapes


@reward(range=(0, 1))
def vowels(rollout: Rollout[Task, Any]) -> float:
    return shapes.reward(rollout.reply)


class Vowels(Environment[Task, Any]):
    """Say many vowels."""

    reward = vowels
    folder: str

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=text) for text in shapes.prompts(self.folder)]


class ForcedEngine(EmbeddedEngine):
    """The embedded engine, but no id ends a reply early; where `lengths` is set each reply takes
    its next number.
    """

    lengths: Iterator[int] | None = None

    @classmethod
    def sharing(cls, module: Any, tokenizer: Any, **options: Any) -> EmbeddedEngine:
        tokenizer.stop_ids = ()
        return super().sharing(module, tokenizer, **options)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        if self.lengths is not None:
            sampling = sampling.replace(max_tokens=next(self.lengths))
        return await super().sample(ids, sampling)
