"""The groups whose episodes run or wait, and those that nobody waits for any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from quintain.rollouts import RolloutRequest


class RunningGroups:
    """Groups from their admission to their last episode, in the order of their admission.

    A group that runs for too long is abandoned: nobody waits for its episodes, which run to their
    end. A group is overtaken by each complete group that was admitted after it.

    Args:
        group_size: episodes of a group.
        groups: of a batch. A group that so many have overtaken is in the way of no other one.
    """

    def __init__(self, *, group_size: int, groups: int) -> None:
        self._group_size = group_size
        self._groups = groups
        self._requests: dict[int, RolloutRequest] = {}
        self._started: dict[int, int] = {}  # the step in which its first episode began
        self._unfinished: dict[int, int] = {}  # episodes, also of abandoned groups
        self._overtaken: Counter[int] = Counter()
        self._abandoned: set[int] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RolloutRequest]:
        return iter(self._requests.values())

    def add(self, request: RolloutRequest) -> None:
        """Admit a group."""
        self._requests[request.index] = request
        self._unfinished[request.index] = self._group_size

    def start(self, index: int, step: int) -> None:
        """Note that an episode of group *index* begins in *step*; its first one counts."""
        if index in self._requests:
            self._started.setdefault(index, step)

    def started(self, step: int) -> Counter[int]:
        """Return how many groups began in which step; those that only wait would begin in *step*."""
        return Counter(self._started.get(index, step) for index in self._requests)

    def episode_ended(self, index: int) -> None:
        """Note the end of an episode of group *index*."""
        self._unfinished[index] -= 1

    def remove(self, index: int, *, overtakes: bool) -> RolloutRequest | None:
        """Remove a group whose episodes have all ended; return its request, ``None`` if it was
        abandoned.

        Args:
            overtakes: count for the groups admitted before it that it has overtaken them.
        """
        del self._unfinished[index]
        if index in self._abandoned:
            self._abandoned.remove(index)
            return None
        if overtakes:
            self._overtaken.update(takewhile(lambda other: other != index, self._requests))
        return self._forget(index)

    def abandon_older(self, step: int) -> list[RolloutRequest]:
        """Abandon the groups that began before *step*; return their requests."""
        old = [i for i in self._requests if self._started.get(i, step) < step]
        self._abandoned.update(old)
        return [self._forget(index) for index in old]

    def is_overtaken(self, index: int) -> bool:
        """Return whether group *index* runs and a whole batch of later groups has overtaken it."""
        return self._overtaken[index] >= self._groups

    @property
    def overtaken(self) -> int:
        """Running groups that a whole batch of later ones has overtaken."""
        return sum(count >= self._groups for count in self._overtaken.values())

    @property
    def episodes(self) -> int:
        """Episodes of running groups that have not ended."""
        return sum(self._unfinished[index] for index in self._requests)

    @property
    def abandoned_episodes(self) -> int:
        """Episodes of abandoned groups that have not ended."""
        return sum(self._unfinished[index] for index in self._abandoned)

    def _forget(self, index: int) -> RolloutRequest:
        self._started.pop(index, None)
        del self._overtaken[index]
        return self._requests.pop(index)
