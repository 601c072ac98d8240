"""The guard of a round: rewards of an environment under the old and the new weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    async def reward(self, model: str, progress: Callable[[Any], None]) -> float:
        """Return the mean reward of the model in a folder.

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
        return measured.reward.value

    def holds(self, before: float, after: float) -> bool:
        """Return whether a reward of *after* may follow one of *before*."""
        return after >= before - self.allowed
