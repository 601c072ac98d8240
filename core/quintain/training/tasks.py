"""Which tasks a step tries.

Everything here is a function of (environments, weights, seed, plan), of the number of tasks picked so far and, where
the plan asks for it, of how they went. So the state is small, and going on from a checkpoint repeats the picking,
without running anything, up to there.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from ..errors import NoTasksError, PluginError, QuintainError, RunError, said_by
from ..interfaces.environment import Environment
from ..interfaces.sampling_plan import Plan
from ..types.sampling import derived_seed
from ..types.task import Task
from .task_order import POOL, WINDOW, Pool, chosen_of, first_pass

_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A task to try.

    Attributes:
        environment: position in the curriculum's list.
        index: how many tasks the run picked before.
        visit: how often the run picked this task (by id) before. It goes into the seed of a rollout, so that a second
            visit to a task draws other samples.
    """

    environment: int
    task: Task
    index: int
    visit: int


class Curriculum:
    """Mixes the train splits of several environments by weight.

    Each split is shuffled by the seed, and shuffled anew for every pass over it; a plan may order it otherwise (see
    `quintain.training.task_order.Pool`). The mix follows the weights evenly: after n picks each
    environment is within a few picks of its share.

    Args:
        environments: where tasks come from.
        weights: share of each; equal by default. They need not add up to 1.
        names: what errors call them.
        seed: of the run.
        plan: order and retirement.
        horizon: how many picks the run will make if nothing is refused; 0 is not known. With ``order = "level"`` so
            many tasks are sorted together, so that the run goes from easy to hard once (a smaller split: pass by pass);
            as many are probed.
    """

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        *,
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        split: str = "train",
        plan: Plan | None = None,
        horizon: int = 0,
    ) -> None:
        self._environments = tuple(environments)
        self._names = tuple(names or (type(e).__name__ for e in environments))
        self._weights = list(weights or [1.0] * len(self._environments))
        self._bounds = list(accumulate(self._weights))
        self._seed, self._split = seed, split
        self._plan, self._horizon = plan or Plan(), horizon
        self._kept: list[list[str]] | None = None
        self._probed: list[int] = [min(WINDOW, self._share(i)) for i in range(len(self._environments))]
        self._pools = [self._pool(i) for i in range(len(self._environments))]
        self._begin()

    def _begin(self) -> None:
        for pool in self._pools:
            pool.restart()
        self._offset = derived_seed(self._seed, "mix")
        self._visits: Counter[str] = Counter()
        self._drawn = 0
        self._open: list[Pick] = []

    def _share(self, at: int) -> int:
        """Picks of an environment that are to be expected, at most `POOL`."""
        return max(1, min(POOL, math.ceil(self._horizon * self._weights[at] / self._bounds[-1]) or POOL))

    def _pool(self, at: int) -> Pool:
        size = {"shuffled": 1, "level": self._share(at), "failures": POOL}[self._plan.order]
        return Pool(
            self._reader(at),
            seed=derived_seed(self._seed, "curriculum", at),
            order=self._plan.order,
            size=size,
            retire=self._plan.retire,
            name=self._names[at],
        )

    def pick(self, count: int) -> list[Pick]:
        """The next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
            UsageError: tasks are to come by level and one has none.
        """
        return [self._next() for _ in range(count)]

    def record(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """How the tasks picked since the last call went: by the index of the pick, how many of how many valid members
        succeeded.
        """
        for pick in self._open:
            right, tried = outcomes.get(pick.index, (0, 0))
            self._pools[pick.environment].record(pick.task.id, right, tried)
        self._open.clear()

    @property
    def probed(self) -> bool:
        """Whether `keep` has said which tasks there are."""
        return self._kept is not None

    def candidates(self) -> list[list[Task]]:
        """What probing looks at, by environment: the first tasks in shuffled order, as many as the run expects to try.

        At most `WINDOW` of each; of a smaller split all.
        """
        return [self._candidates(at) for at in range(len(self._environments))]

    def _candidates(self, at: int) -> list[Task]:
        return first_pass(self._reader(at), derived_seed(self._seed, "curriculum", at), self._probed[at])

    def keep(self, kept: Sequence[Sequence[str]]) -> None:
        """Draw from now on only the `candidates` with these ids, by environment; before the first pick.

        Raises:
            RunError: one is no candidate.
        """
        self._kept = [list(ids) for ids in kept]
        for at, ids in enumerate(self._kept):
            tasks = chosen_of(self._candidates(at), ids, self._names[at])
            self._pools[at].read = partial(iter, tasks)
        self._begin()

    def notices(self) -> list[str]:
        """What people should hear of, once."""
        found = [line for pool in self._pools for line in pool.notices]
        for pool in self._pools:
            pool.notices.clear()
        return found

    def metrics(self) -> dict[str, int]:
        """How many tasks are retired, where the plan retires any."""
        return {} if self._plan.retire is None else {"curriculum.retired": sum(len(p.retired) for p in self._pools)}

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        state: dict[str, Any] = {"picked": self._drawn, "fingerprint": self._fingerprint()}
        if self._plan.order != "shuffled":
            state["sizes"] = [pool.size for pool in self._pools]
        if self._kept is not None:
            state |= {"probed": list(self._probed), "kept": [list(ids) for ids in self._kept]}
        if self._adaptive:
            state |= {"visits": dict(self._visits), "pools": [pool.state() for pool in self._pools]}
        return state

    @property
    def _adaptive(self) -> bool:
        return any(pool.adaptive for pool in self._pools)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was taken, by picking again from the start where that is enough.

        Raises:
            RunError: the environments now yield other tasks than they did, or the plan is another one.
        """
        for pool, size in zip(self._pools, state.get("sizes", ()), strict=False):
            pool.size = size
        if "kept" in state:
            self._probed = list(state["probed"])
            self.keep(state["kept"])
        self._begin()
        if self._adaptive:
            self._take_up(state)
        else:
            for _ in range(state["picked"]):
                self._next()
            self.record({})
        if state["fingerprint"] != self._fingerprint():
            raise RunError(
                f"the environments {', '.join(self._names)} do not yield the tasks of the checkpoint any more, so the "
                "run cannot go on as it was; restore the data it began with, or start a new run from its model"
            )

    def _take_up(self, state: Mapping[str, Any]) -> None:
        if "pools" not in state:
            raise RunError(
                "the checkpoint does not say how its tasks went, as its plan did not ask for it; go on with the plan "
                "it was made with, or start a new run from its model"
            )
        self._drawn, self._visits = state["picked"], Counter(state["visits"])
        for pool, held in zip(self._pools, state["pools"], strict=True):
            pool.restore(held)

    def _fingerprint(self) -> str:
        """Of the tasks that were read, in their order."""
        return hashlib.sha256("".join(pool.fingerprint() for pool in self._pools).encode()).hexdigest()[:16]

    def _next(self) -> Pick:
        at = self._which(self._drawn)
        task = self._pools[at].draw()
        pick = Pick(environment=at, task=task, index=self._drawn, visit=self._visits[task.id])
        self._visits[task.id] += 1
        self._drawn += 1
        self._open.append(pick)
        return pick

    def _which(self, index: int) -> int:
        """The environment of a pick: a golden-ratio (Weyl) sequence through the weights spreads each one evenly."""
        point = (self._offset + index * _GOLDEN) % 2**64 / 2**64 * self._bounds[-1]
        return next((i for i, bound in enumerate(self._bounds) if point < bound), len(self._bounds) - 1)

    def _reader(self, at: int) -> Callable[[], Iterator[Task]]:
        environment, name = self._environments[at], self._names[at]

        def read() -> Iterator[Task]:
            found = False
            try:
                for task in environment.tasks(self._split):
                    if not isinstance(task, Task):
                        raise PluginError(f"environment {name!r} yields {task!r} among its tasks; expected a Task")
                    found = True
                    yield task
            except QuintainError:
                raise
            except Exception as e:
                raise PluginError(f"environment {name!r} failed in tasks({self._split!r}): {said_by(e)}") from e
            if not found:
                raise NoTasksError(
                    f"environment {name!r} has no tasks in its {self._split!r} split; check its arguments "
                    f"(`quintain info {name}` shows them)"
                )

        return read
