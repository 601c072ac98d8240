"""Complete groups that wait for their batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from quintain.rollouts import RolloutRequest
from quintain.types import AnyGroup


@dataclass(frozen=True, kw_only=True)
class CompleteGroup:
    """A complete group outside of any batch.

    Attributes:
        reason: why it is rejected; empty if it is accepted.
        oldest: the lowest version of the tokens that would train; ``None`` without such.
    """

    request: RolloutRequest
    group: AnyGroup
    reason: str
    oldest: int | None


class CompleteGroups:
    """Complete groups outside of any batch, in the order in which they were completed.

    Each group that is completed asks how many there are and which are too old. Thousands may wait,
    so that the answers need no pass over all of them.

    Attributes:
        valid: how many have a valid rollout.
    """

    def __init__(self) -> None:
        self._groups: list[CompleteGroup] = []
        self._reasons: Counter[str] = Counter()
        self.valid = 0
        # Of the first `_checked`, those with versions below `_limit` are refused.
        self._limit, self._checked = 0, 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[CompleteGroup]:
        return iter(self._groups)

    def add(self, complete: CompleteGroup) -> None:
        """Add one more."""
        self._groups.append(complete)
        self._reasons[complete.reason] += 1
        self.valid += bool(complete.group.valid)

    def count(self, *, rejected: bool) -> int:
        """Return how many count towards a batch: those that are accepted, with *rejected* all but
        stale ones.
        """
        return len(self._groups) - self._reasons["stale"] if rejected else self._reasons[""]

    def usable(self, *, rejected: bool) -> list[CompleteGroup]:
        """Return those that `count` counts, in the order of their tasks."""
        usable = [c for c in self._groups if c.reason != "stale" and (rejected or not c.reason)]
        return sorted(usable, key=lambda c: c.group.index)

    def reasons(self) -> set[str]:
        """Return the reasons of those that are rejected."""
        return {reason for reason, count in self._reasons.items() if reason and count}

    def refuse_older(self, limit: int) -> list[CompleteGroup]:
        """Give the accepted ones with a token of a version below *limit* the reason ``stale``;
        return them.
        """
        if limit != self._limit:
            self._limit, self._checked = limit, 0
        refused = []
        for position in range(self._checked, len(self._groups)):
            complete = self._groups[position]
            if not complete.reason and complete.oldest is not None and complete.oldest < limit:
                complete = self._groups[position] = replace(complete, reason="stale")
                self._reasons[""] -= 1
                self._reasons["stale"] += 1
                refused.append(complete)
        self._checked = len(self._groups)
        return refused

    def take(
        self, indices: Collection[int] = (), reasons: Collection[str] = ()
    ) -> list[CompleteGroup]:
        """Remove and return the groups of *indices* and those with one of *reasons*, in the order
        of their tasks.
        """
        taken, kept = list[CompleteGroup](), list[CompleteGroup]()
        for complete in self._groups:
            wanted = complete.group.index in indices or complete.reason in reasons
            (taken if wanted else kept).append(complete)
        self._groups, self._checked = kept, 0
        self._reasons.subtract(complete.reason for complete in taken)
        self.valid -= sum(bool(complete.group.valid) for complete in taken)
        return sorted(taken, key=lambda c: c.group.index)
