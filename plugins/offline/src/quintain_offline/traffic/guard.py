"""The guard of a round: rewards of an environment under the old and the new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from quintain import Sampling
from quintain.errors import InfrastructureError
from quintain.evaluation import evaluate, tasks_of

if TYPE_CHECKING:
    from quintain.recipe import EnvironmentSpec


@dataclass(frozen=True, kw_only=True)
class RewardGuard:
    """Tasks of an environment, answered greedily, whose mean reward must not fall.

    Attributes:
        tasks: of the split ``dev``, the first.
        allowed: fall of the mean reward that is allowed.
    """

    spec: EnvironmentSpec
    tasks: int
    max_tokens: int
    allowed: float = 0.0

    async def rewards(self, model: str, progress: Callable[[Any], None]) -> list[float | None]:
        """Return the rewards of the model in a folder, by task; ``None`` where a rollout failed
        through no doing of the model.

        Raises:
            InfrastructureError: no rollout has a reward.
        """
        from quintain.engine import EmbeddedEngine

        environment = self.spec.make({})
        tasks = tasks_of(environment, "dev", self.tasks, name=self.spec.name)
        engine = EmbeddedEngine(model)
        async with engine:
            measured = await evaluate(
                environment,
                engine,
                split="dev",
                tasks=tasks,
                sampling=Sampling(temperature=0.0, max_tokens=self.max_tokens),
                name=self.spec.name,
                progress=progress,
            )
        if measured.reward is None:
            raise InfrastructureError(
                f"the guard {self.spec.name!r} measured nothing, and no weights were served: "
                f"{next(iter(measured.reasons))}"
            )
        return [task.reward if task.samples else None for task in measured.results]

    def means(
        self, before: Sequence[float | None], after: Sequence[float | None]
    ) -> tuple[float, float, int]:
        """Return the mean rewards over the tasks that both have one for, and the number of these: a
        rollout that failed on one side alone must not decide.

        Raises:
            InfrastructureError: there is no such task.
        """
        both = [
            (old, new)
            for old, new in zip(before, after, strict=True)
            if old is not None and new is not None
        ]
        if not both:
            raise InfrastructureError(
                f"the guard {self.spec.name!r} measured no task under the old and the new weights, "
                "and no weights were served"
            )
        return fmean(old for old, _ in both), fmean(new for _, new in both), len(both)

    def holds(self, before: float, after: float) -> bool:
        """Return whether a reward of *after* may follow one of *before*."""
        return after >= before - self.allowed
