"""A curriculum that orders tasks by level or by failures, drops solved tasks, and filters tasks by
difficulty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from quintain import Environment, SamplingPlan, Task
from quintain.errors import RunError
from quintain.interfaces import Pick
from quintain.tasks import WINDOW, Mixture, Visits
from quintain.types import derived_seed

from .difficulty import Rates, success_rates, tasks_in_range
from .pass_rates import read_pass_rates, tasks_with
from .pool import POOL, TaskPool, chosen_of, first_pass, level_of


class AdaptiveCurriculum(Mixture):
    """Mixes environments as `Mixture` does; the tasks of each come as the plan orders them (see
    `TaskPool`).

    With ``order = "easy_to_hard"`` as many tasks are sorted together as the run will pick
    (`horizon`), so that it goes from easy to hard once (a smaller split: pass by pass); as many are
    looked at by the difficulty filter.
    """

    _streams: list[TaskPool]  # type: ignore[assignment]

    def __init__(self, environments: Sequence[Environment[Any, Any]], **settings: Any) -> None:
        self._kept: list[list[str]] | None = None
        self._listed: tuple[str, ...] = ()
        """Tasks of the plan's file."""
        self._rates: dict[str, tuple[int, int]] = {}
        super().__init__(environments, **settings)
        self._measured_tasks = [min(WINDOW, self._share(i)) for i in range(len(self._environments))]

    @classmethod
    def check(cls, task: Task, name: str, plan: SamplingPlan) -> None:
        """Refuse an environment without levels where the plan orders by them.

        Raises:
            UsageError: *task* has no level, or the plan's file of pass rates is none.
        """
        if plan.difficulty_file:
            read_pass_rates(plan.difficulty_file)
        elif plan.order == "easy_to_hard":
            level_of(task, name)

    async def prepare(self, run: Any) -> dict[str, Any]:
        """Leave out the tasks that are too easy or too hard, where the plan asks for it: by its
        file of pass rates, or by samples of the starting policy.

        What is not in the file, or not sound by its audit, is not drawn; orders begin with its
        rates. The tasks kept go
        into every checkpoint, so that a resumed run neither reads the file nor samples again.

        Returns:
            What sampling took, as metrics for the record of step 0.

        Raises:
            UsageError: the file is none of pass rates.
            NoTasksError: an environment has no task left.
        """
        plan = self.plan
        if self.filtered or not (plan.difficulty_file or plan.difficulty_samples):
            return {}
        metrics: dict[str, Any] = {}
        if plan.difficulty_file:
            counts = read_pass_rates(plan.difficulty_file)
            self._listed = tuple(counts)
            self.measured(
                {task: (rate.right, rate.tried) for task, rate in counts.items() if rate.tried}
            )
            where = f"in {plan.difficulty_file}"
            rates: list[Rates] = [
                {t.id: counts[t.id].rate if counts[t.id].tried else None for t in tasks}
                for tasks in self.candidates()
            ]
        else:
            where = f"in {plan.difficulty_samples} samples of the starting policy"
            rates, metrics = await success_rates(run, self.candidates(), plan.difficulty_samples)
        self.keep(tasks_in_range(run, rates, plan.difficulty_range, where))
        return metrics

    def _begin(self) -> None:
        super()._begin()
        # environment and task of picks without an outcome, by index
        self._open: dict[int, tuple[int, str]] = {}

    def _share(self, index: int) -> int:
        """Return the picks of an environment that are to be expected, at most `POOL`."""
        return max(
            1,
            min(
                POOL,
                math.ceil(self._horizon * self._weights[index] / self._bounds[-1]) or POOL,
            ),
        )

    def stream(self, at: int) -> TaskPool:
        size = {"shuffled": 1, "easy_to_hard": self._share(at), "hard_first": POOL}[self.plan.order]
        return TaskPool(
            self.reader(at),
            seed=derived_seed(self._seed, "curriculum", at),
            order=self.plan.order,
            size=size,
            drop_solved=self.plan.drop_solved,
            rates=self._rates,
            name=self._names[at],
        )

    def _next(self) -> Pick:
        pick = super()._next()
        self._open[pick.index] = (pick.environment, pick.task.id)
        return pick

    def record(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Record how picked tasks went: by the index of the pick, how many of how many valid
        samples succeeded.

        Other picks stay open: their episodes may still run.
        """
        for index, (right, tried) in outcomes.items():
            if (entry := self._open.pop(index, None)) is not None:
                self._streams[entry[0]].record(entry[1], right, tried)

    @property
    def filtered(self) -> bool:
        """Whether `keep` has said which tasks there are."""
        return self._kept is not None

    def candidates(self) -> list[list[Task]]:
        """Return the tasks whose difficulty is measured, by environment: the first in shuffled
        order, as many as the run expects to try.

        At most `WINDOW` of each; of a smaller split all. Where the plan names a file of pass rates,
        its tasks.
        """
        return [self._candidates(index) for index in range(len(self._environments))]

    def _candidates(self, index: int) -> list[Task]:
        if self.plan.difficulty_file:
            return tasks_with(
                self._kept[index] if self._kept else self._listed,
                self.reader(index),
                self._names[index],
            )
        return first_pass(
            self.reader(index),
            derived_seed(self._seed, "curriculum", index),
            self._measured_tasks[index],
        )

    def measured(self, rates: Mapping[str, tuple[int, int]]) -> None:
        """Take successes and attempts by task, which orders begin with; before the first pick."""
        self._rates.update(rates)

    def keep(self, ids_of_environments: Sequence[Sequence[str]]) -> None:
        """Draw from now on only the `candidates` with these ids, by environment; before the first
        pick.

        Raises:
            RunError: one is no candidate.
        """
        self._kept = [list(ids) for ids in ids_of_environments]
        for index, ids in enumerate(self._kept):
            tasks = chosen_of(self._candidates(index), ids, self._names[index])
            self._streams[index].read = partial(iter, tasks)
        self._begin()

    def notices(self) -> list[str]:
        """Return the messages for the user that have not been given yet."""
        lines = [line for pool in self._streams for line in pool.notices]
        for pool in self._streams:
            pool.notices.clear()
        return lines

    def metrics(self) -> dict[str, int]:
        """Return how many tasks are dropped, where the plan drops any."""
        return (
            {}
            if self.plan.drop_solved is None
            else {"curriculum.dropped": sum(len(p.dropped) for p in self._streams)}
        )

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        state = self.replayed_state()
        if self.plan.order != "shuffled":
            state["sizes"] = [pool.size for pool in self._streams]
        if self._kept is not None:
            state |= {
                "probed": list(self._measured_tasks),
                "kept": [list(ids) for ids in self._kept],
            }
        if self._rates:
            state["rates"] = {task: list(counts) for task, counts in self._rates.items()}
        if self._adaptive:
            state["open"] = [[index, *entry] for index, entry in self._open.items()]
            state |= {
                "visits": self._visits.state(),
                "pools": [pool.state() for pool in self._streams],
            }
        return state

    @property
    def _adaptive(self) -> bool:
        return any(pool.adaptive for pool in self._streams)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was taken.

        Raises:
            RunError: the environments now yield other tasks than they did, or the plan is another
                one.
        """
        for pool, size in zip(self._streams, state.get("sizes", ()), strict=False):
            pool.size = size
        self.measured(
            {task: (right, tried) for task, (right, tried) in state.get("rates", {}).items()}
        )
        if "kept" in state:
            self._measured_tasks = list(state["probed"])
            self.keep(state["kept"])
        super().restore(state)

    def _return_to(self, state: Mapping[str, Any]) -> None:
        if not self._adaptive:
            super()._return_to(state)
            self._open.clear()  # they record nothing
            return
        if "pools" not in state:
            raise RunError(
                "the checkpoint does not say how its tasks went, as its plan did not ask for it; "
                "go on with the plan it was made with, or start a new run from its model"
            )
        self._drawn, self._visits = state["picked"], Visits.of(state["visits"])
        for pool, pool_state in zip(self._streams, state["pools"], strict=True):
            pool.restore(pool_state)
        self._open = {
            index: (environment, task) for index, environment, task in state.get("open", ())
        }
