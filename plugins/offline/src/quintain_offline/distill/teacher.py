"""The contract of a teacher: next-token distributions at given places of given tokens, each
computed once.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from quintain import Service

CACHED = 1 << 24
"""Numbers of a teacher's cache: 64 MiB of float32."""


class TeacherRow(NamedTuple):
    """Token ids, and the positions (from 1, increasing) at which the teacher is asked for what
    comes there.

    ``environment`` says where the tokens came from, ``sample`` which sample of the batch they
    belong to.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    environment: str = ""
    sample: int = 0


@dataclass(frozen=True, kw_only=True)
class TeacherScore:
    """What a teacher says at the n positions of a row, in host memory.

    Attributes:
        logp: log-prob of the token that is there, [n].
        top_logp: log-probs of other ids, normalised over the teacher's whole vocabulary, [n, K];
            ``None`` where none were asked for.
        top_ids: these ids, [n, K]; ``None`` means that they are all ids of the policy, in order.
        rest_logp: log of the probability of all ids of the teacher but these, [n]; ``None`` where
            it does not say.
    """

    logp: Tensor
    top_logp: Tensor | None = None
    top_ids: Tensor | None = None
    rest_logp: Tensor | None = None

    @property
    def size(self) -> int:
        """Numbers that it holds."""
        held = (self.logp, self.top_logp, self.top_ids, self.rest_logp)
        return sum(x.numel() for x in held if x is not None)


class Teacher(Service):
    """Gives next-token distributions. A subclass implements `compute`.

    Equal rows are computed once: in a call, and in later calls while they are among the last
    `CACHED` numbers.

    Attributes:
        computed, reused: rows so far that were computed, and that were not.
        seconds: spent in `compute` so far.
    """

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[Any, ...], TeacherScore] = OrderedDict()
        self._cached = 0
        self.computed, self.reused, self.seconds = 0, 0, 0.0

    @abstractmethod
    async def compute(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        """Compute the scores of *rows*, which are all different; arguments as in `score`."""

    async def score(
        self, rows: Sequence[TeacherRow], *, temperature: float = 1.0, top: int | None = None
    ) -> list[TeacherScore | None]:
        """Return the score of each row; ``None`` for a row about which the teacher says nothing.

        Args:
            temperature: of the policy; a teacher with a temperature of its own takes that.
            top: how many of its likeliest ids to return with their log-probs; 0 is the whole
                vocabulary, ``None`` is none.

        Raises:
            UsageError: the row has an id that means something else to the teacher, or the teacher
                cannot give what is asked for.
            LimitReached: a row is longer than the context of the teacher.
        """
        keys = [(row.environment, row.ids, row.positions, temperature, top) for row in rows]
        found = {key: self._cache[key] for key in keys if key in self._cache}
        missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in found}
        if missing:
            began = time.perf_counter()
            scores = await self.compute(list(missing.values()), temperature, top)
            self.seconds += time.perf_counter() - began
            found |= zip(missing, scores, strict=True)
        self.computed += len(missing)
        self.reused += len(rows) - len(missing)
        self._keep(found)
        return [found[key] for key in keys]

    def forget(self) -> None:
        """Clear the cache, where the weights have changed."""
        self._cache.clear()
        self._cached = 0

    def _keep(self, found: dict[tuple[Any, ...], TeacherScore]) -> None:
        for key, score in found.items():
            if key not in self._cache:
                self._cache[key] = score
                self._cached += score.size
            self._cache.move_to_end(key)
        while self._cached > CACHED:
            self._cached -= self._cache.popitem(last=False)[1].size
