"""A curriculum that orders tasks by level or by failures, drops solved tasks, and filters tasks by
difficulty.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from quintain import Environment, SamplingPlan, Task
from quintain.errors import RunError
from quintain.interfaces import Curriculum, Pick, TaskReader
from quintain.tasks import (
    WINDOW,
    SplitReader,
    Visits,
    WeightedTurns,
    stream_seed,
    tasks_changed,
)

from .difficulty import Rates, success_rates, tasks_in_range
from .pass_rates import read_pass_rates, tasks_with
from .pool import POOL, TaskPool, chosen_of, first_pass, level_of


class AdaptiveCurriculum(Curriculum):
    """Mixes environments as `Mixture` does; the tasks of each come as the plan orders them (see
    `TaskPool`).

    With ``order = "easy_to_hard"`` as many tasks are sorted together as the run will pick
    (`horizon`), so that it goes from easy to hard once (a smaller split: pass by pass); as many are
    looked at by the difficulty filter.

    Args:
        weights: equal by default.
        names: of the environments, for errors; by default those of their classes.
        plan: the order, and what is dropped or left out.
        horizon: number of picks of the run if no group is rejected; 0: unknown.
    """

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        *,
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        plan: SamplingPlan | None = None,
        horizon: int = 0,
    ) -> None:
        self.plan = plan or SamplingPlan()
        self._names = tuple(names or (type(e).__name__ for e in environments))
        self._seeds = [stream_seed(seed, at) for at in range(len(environments))]
        self._turns = WeightedTurns(weights or [1.0] * len(environments), seed)
        self._readers = [
            SplitReader(environment, "train", name)
            for environment, name in zip(environments, self._names, strict=True)
        ]
        expected = [self._expected_picks(at, horizon) for at in range(len(environments))]
        self._measured_tasks = [min(WINDOW, picks) for picks in expected]
        self._kept: list[list[str]] | None = None
        self._listed: tuple[str, ...] = ()
        """Tasks of the plan's file."""
        self._rates: dict[str, tuple[int, int]] = {}
        self._pools = [self._pool(at, picks) for at, picks in enumerate(expected)]
        self._begin()

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

    def pick(self, count: int) -> list[Pick]:
        """Return the next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
            UsageError: tasks are to come by level and one has none.
        """
        return [self._next() for _ in range(count)]

    def reader(self, at: int) -> TaskReader:
        """Return a function that starts a pass over the tasks of environment *at*, checked one by
        one.
        """
        return self._readers[at]

    def record(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Record how picked tasks went: by the index of the pick, how many of how many valid
        samples succeeded.

        Other picks stay open: their episodes may still run.
        """
        for index, (right, tried) in outcomes.items():
            if (entry := self._open.pop(index, None)) is not None:
                self._pools[entry[0]].record(entry[1], right, tried)

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
        return [self._candidates(index) for index in range(len(self._pools))]

    def _candidates(self, index: int) -> list[Task]:
        if self.plan.difficulty_file:
            return tasks_with(
                self._kept[index] if self._kept else self._listed,
                self._readers[index],
                self._names[index],
            )
        return first_pass(self._readers[index], self._seeds[index], self._measured_tasks[index])

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
            self._pools[index].read = partial(iter, tasks)
        self._begin()

    def notices(self) -> list[str]:
        """Return the messages for the user that have not been given yet."""
        lines = [line for pool in self._pools for line in pool.notices]
        for pool in self._pools:
            pool.notices.clear()
        return lines

    def metrics(self) -> dict[str, int]:
        """Return how many tasks are dropped, where the plan drops any."""
        return (
            {}
            if self.plan.drop_solved is None
            else {"curriculum.dropped": sum(len(p.dropped) for p in self._pools)}
        )

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        state: dict[str, Any] = {"picked": self._drawn, "fingerprint": self._fingerprint()}
        if self.plan.order != "shuffled":
            state["sizes"] = [pool.size for pool in self._pools]
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
                "pools": [pool.state() for pool in self._pools],
            }
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was taken.

        Raises:
            RunError: the environments now yield other tasks than they did, or the plan is another
                one.
        """
        for pool, size in zip(self._pools, state.get("sizes", ()), strict=False):
            pool.size = size
        self.measured(
            {task: (right, tried) for task, (right, tried) in state.get("rates", {}).items()}
        )
        if "kept" in state:
            self._measured_tasks = list(state["probed"])
            self.keep(state["kept"])
        self._begin()
        if self._adaptive:
            self._restore_pools(state)
        else:
            self._pick_again(state["picked"])
        if state["fingerprint"] != self._fingerprint():
            raise tasks_changed(self._names)

    def _restore_pools(self, state: Mapping[str, Any]) -> None:
        """Go back to where the pools stood: what was drawn depends on what had been recorded."""
        if "pools" not in state:
            raise RunError(
                "the checkpoint does not say how its tasks went, as its plan did not ask for it; "
                "go on with the plan it was made with, or start a new run from its model"
            )
        self._drawn = state["picked"]
        self._visits = Visits.of(state["visits"])
        for pool, pool_state in zip(self._pools, state["pools"], strict=True):
            pool.restore(pool_state)
        for index, environment, task in state.get("open", ()):
            self._open[index] = (environment, task)

    def _pick_again(self, picks: int) -> None:
        """Repeat the *picks*, whose order depends on nothing that was recorded."""
        for _ in range(picks):
            self._next()
        self._open.clear()  # they record nothing

    def _begin(self) -> None:
        """Go back to before the first pick."""
        for pool in self._pools:
            pool.restart()
        self._visits = Visits()
        self._drawn = 0
        # environment and task of picks without an outcome, by index
        self._open: dict[int, tuple[int, str]] = {}

    def _next(self) -> Pick:
        environment = self._turns.environment(self._drawn)
        task = self._pools[environment].draw()
        visit = self._visits.add(task.id)
        pick = Pick(environment=environment, task=task, index=self._drawn, visit=visit)
        self._drawn += 1
        self._open[pick.index] = (environment, task.id)
        return pick

    def _expected_picks(self, at: int, horizon: int) -> int:
        """Return the picks of an environment that are to be expected, at most `POOL`."""
        share = math.ceil(horizon * self._turns.weights[at] / self._turns.total)
        return max(1, min(POOL, share or POOL))

    def _pool(self, at: int, expected: int) -> TaskPool:
        size = {"shuffled": 1, "easy_to_hard": expected, "hard_first": POOL}[self.plan.order]
        return TaskPool(
            self._readers[at],
            seed=self._seeds[at],
            order=self.plan.order,
            size=size,
            drop_solved=self.plan.drop_solved,
            rates=self._rates,
            name=self._names[at],
        )

    @property
    def _adaptive(self) -> bool:
        return any(pool.adaptive for pool in self._pools)

    def _fingerprint(self) -> str:
        """Digest of the tasks that were drawn, by environment in their order."""
        digests = "".join(pool.fingerprint() for pool in self._pools)
        return hashlib.sha256(digests.encode()).hexdigest()[:16]
