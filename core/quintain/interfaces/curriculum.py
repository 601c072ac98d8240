"""Curricula: which tasks a run tries, in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..types.task import Task
from .environment import Environment
from .sampling_plan import SamplingPlan

TaskReader = Callable[[], Iterator[Task]]
"""Begins a pass over the tasks of a split."""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A task to try.

    Attributes:
        environment: position in the curriculum's list.
        index: number of earlier picks of the run.
        visit: number of earlier picks of this task (by id); part of the seed of a rollout, so that
            a second visit draws new samples.
    """

    environment: int
    task: Task
    index: int
    visit: int


class Curriculum(ABC):
    """Chooses the tasks of a run; `quintain.tasks.Mixture` does where the plan orders nothing.

    Args:
        environments: where tasks come from.
        weights: share of each. They need not add up to 1.
        names: of the environments, for errors.
        seed: of the run.
        plan: of the algorithm; read by curricula that adapt.
        horizon: number of picks of the run if no group is rejected; 0: unknown. For curricula that
            plan ahead.
    """

    @abstractmethod
    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        *,
        weights: Sequence[float],
        names: Sequence[str],
        seed: int,
        plan: SamplingPlan,
        horizon: int,
    ) -> None: ...

    @classmethod  # noqa: B027 - most plans ask for no attribute
    def check(cls, task: Task, name: str, plan: SamplingPlan) -> None:
        """Refuse an environment whose first *task* lacks the attribute that the plan orders by;
        here a no-op.
        """

    async def prepare(self, run: Any) -> dict[str, Any]:
        """Measure tasks with the initial policy of *run* (a `Run`); return metrics of step 0. Here
        a no-op.
        """
        return {}

    @abstractmethod
    def pick(self, count: int) -> list[Pick]:
        """Return the next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
        """

    @abstractmethod
    def reader(self, at: int) -> TaskReader:
        """Return a function that starts a pass over the tasks of environment *at*, checked one by
        one.
        """

    def record(  # noqa: B027 - optional
        self, outcomes: Mapping[int, tuple[int, int]]
    ) -> None:
        """Record the numbers of successful and of valid rollouts, by index of the pick. Here a
        no-op.
        """

    def notices(self) -> list[str]:
        """Return new messages for the user; none here."""
        return []

    def metrics(self) -> dict[str, int]:
        """Return the metrics of the curriculum; none here."""
        return {}

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`.

        Raises:
            RunError: the environments now yield different tasks.
        """
