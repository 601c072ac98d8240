"""The train splits of the environments, each shuffled, mixed by weight.

The order is a function of environments, weights, seed and the number of picks. A checkpoint has
where each split stands: what the shuffle buffer holds, by number, and the state of its random
numbers. So a resumed run reads the tasks of the buffer alone where the split is a sequence, and
what a generator yields once. A curriculum that adapts to outcomes is a subclass in a plugin (kind
``curriculum``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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


class Mixture(Curriculum):
    """Mixes the train splits of several environments by weight.

    Each split is shuffled by the seed and reshuffled for every pass. The mix follows the weights
    evenly: after n picks each environment is within a few picks of its share.

    Args:
        weights: equal by default.
        split: of the environments.
    """

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        *,
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        split: str = "train",
        plan: SamplingPlan | None = None,
        horizon: int = 0,
    ) -> None:
        self._environments = tuple(environments)
        self._names = tuple(names or (type(e).__name__ for e in environments))
        self._weights = list(weights or [1.0] * len(self._environments))
        self._bounds = list(accumulate(self._weights))
        self._seed, self._split = seed, split
        self.plan, self._horizon = plan or SamplingPlan(), horizon
        self._streams = [self.stream(i) for i in range(len(self._environments))]
        self._begin()

    def stream(self, at: int) -> TaskStream:
        """Return the tasks of environment *at*."""
        return TaskStream(self.reader(at), derived_seed(self._seed, "curriculum", at))

    def _begin(self) -> None:
        for stream in self._streams:
            stream.restart()
        self._offset = derived_seed(self._seed, "mix")
        self._visits = Visits()
        self._drawn = 0

    def pick(self, count: int) -> list[Pick]:
        """Return the next *count* tasks.

        Raises:
            NoTasksError: an environment has none.
        """
        return [self._next() for _ in range(count)]

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "seed": self._seed,
            "picked": self._drawn,
            "streams": [stream.position() for stream in self._streams],
            "visits": self._visits.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state`; that of an older version by repeating the picks from the
        start.

        Raises:
            RunError: the environments now yield different tasks.
        """
        self._begin()
        if "streams" not in state:
            self._return_to(state)
            same = state["fingerprint"] == self._fingerprint()
        else:
            self._drawn, self._visits = state["picked"], Visits.of(state["visits"])
            positions = zip(self._streams, state["streams"], strict=False)
            same = (
                state["seed"] == self._seed
                and len(state["streams"]) == len(self._streams)
                and all(stream.seek(position) for stream, position in positions)
            )
        if not same:
            raise RunError(
                f"the environments {', '.join(self._names)} no longer yield the tasks of the "
                "checkpoint, so the run cannot be resumed; restore its original data, or start a "
                "new run from its model"
            )

    def replayed_state(self) -> dict[str, Any]:
        """Return plain data from which the picks are repeated, for curricula whose streams have no
        position of their own.
        """
        return {"picked": self._drawn, "fingerprint": self._fingerprint()}

    def _return_to(self, state: Mapping[str, Any]) -> None:
        for _ in range(state["picked"]):
            self._next()

    def _fingerprint(self) -> str:
        """Digest of the tasks that were drawn, in their order."""
        return hashlib.sha256(
            "".join(stream.fingerprint() for stream in self._streams).encode()
        ).hexdigest()[:16]

    def _next(self) -> Pick:
        environment = self._which(self._drawn)
        task = self._streams[environment].draw()
        visit = self._visits.add(task.id)
        pick = Pick(environment=environment, task=task, index=self._drawn, visit=visit)
        self._drawn += 1
        return pick

    def _which(self, index: int) -> int:
        """Return the environment of a pick: a golden-ratio (Weyl) sequence through the weights
        spreads each one evenly.
        """
        point = (self._offset + index * _GOLDEN) % 2**64 / 2**64 * self._bounds[-1]
        return next(
            (i for i, bound in enumerate(self._bounds) if point < bound), len(self._bounds) - 1
        )

    def reader(self, at: int) -> TaskReader:
        """Return a function that starts a pass over the tasks of environment *at*, checked one by
        one.
        """
        return SplitReader(self._environments[at], self._split, self._names[at])
