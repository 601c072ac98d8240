"""The train splits of the environments, each shuffled, mixed by weight.

The order is a function of environments, weights, seed and the number of picks. A checkpoint has
where each split stands: what the shuffle buffer holds, by number, and the state of its random
numbers. So a resumed run reads the tasks of the buffer alone where the split is a sequence, and
what a generator yields once. A curriculum that adapts to outcomes is a class of its own, which
`WeightedTurns`, `SplitReader` and `Visits` serve as they do here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..errors import RunError
from ..interfaces.curriculum import Curriculum, Pick, TaskReader
from ..interfaces.environment import Environment
from ..interfaces.sampling_plan import SamplingPlan
from ..types.sampling import derived_seed
from .stream import SplitReader, TaskStream
from .visits import Visits

_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly."""


class WeightedTurns:
    """Says which environment each pick of a run takes its task from.

    The mix follows the weights evenly: after n picks each environment is within a few picks of its
    share.

    Args:
        weights: of the environments, above 0; they need not add up to 1.
        seed: of the run.

    Attributes:
        weights: as given.
        total: their sum.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self.weights = tuple(weights)
        self._bounds = list(accumulate(weights))
        self.total = self._bounds[-1]
        self._offset = derived_seed(seed, "mix")

    def environment(self, index: int) -> int:
        """Return the position of the environment of pick *index*: a golden-ratio (Weyl) sequence
        through the weights spreads each one evenly.
        """
        point = (self._offset + index * _GOLDEN) % 2**64 / 2**64 * self.total
        for position, bound in enumerate(self._bounds):
            if point < bound:
                return position
        return len(self._bounds) - 1  # rounding may put the point on the last bound


def stream_seed(seed: int, at: int) -> int:
    """Return the seed of the shuffle of environment *at* in a run of *seed*."""
    return derived_seed(seed, "curriculum", at)


def tasks_changed(names: Iterable[str]) -> RunError:
    """Return the error of a resume whose environments, of these *names*, yield other tasks."""
    return RunError(
        f"the environments {', '.join(names)} no longer yield the tasks of the checkpoint, so the "
        "run cannot be resumed; restore its original data, or start a new run from its model"
    )


class Mixture(Curriculum):
    """Mixes the train splits of several environments by weight.

    Each split is shuffled by the seed and reshuffled for every pass.

    Args:
        weights: equal by default.
        names: of the environments, for errors; by default those of their classes.
        plan, horizon: not read, since the order depends on neither.
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
        self._names = tuple(names or (type(e).__name__ for e in environments))
        self._seed = seed
        self._turns = WeightedTurns(weights or [1.0] * len(environments), seed)
        self._readers = [
            SplitReader(environment, "train", name)
            for environment, name in zip(environments, self._names, strict=True)
        ]
        self._streams = [
            TaskStream(reader, stream_seed(seed, at)) for at, reader in enumerate(self._readers)
        ]
        self._visits = Visits()
        self._drawn = 0

    def pick(self, count: int) -> list[Pick]:
        """Return the next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
        """
        return [self._next() for _ in range(count)]

    def reader(self, at: int) -> TaskReader:
        """Return a function that starts a pass over the tasks of environment *at*, checked one by
        one.
        """
        return self._readers[at]

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "seed": self._seed,
            "picked": self._drawn,
            "streams": [stream.position() for stream in self._streams],
            "visits": self._visits.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`.

        Raises:
            RunError: the environments now yield different tasks.
        """
        positions = state["streams"]
        if state["seed"] != self._seed or len(positions) != len(self._streams):
            raise tasks_changed(self._names)
        for stream, position in zip(self._streams, positions, strict=True):
            if not stream.seek(position):
                raise tasks_changed(self._names)
        self._drawn = state["picked"]
        self._visits = Visits.of(state["visits"])

    def _next(self) -> Pick:
        environment = self._turns.environment(self._drawn)
        task = self._streams[environment].draw()
        visit = self._visits.add(task.id)
        pick = Pick(environment=environment, task=task, index=self._drawn, visit=visit)
        self._drawn += 1
        return pick
