"""Which replica of a pool samples which turn, and which replicas take turns at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from quintain import InfrastructureError

from .repack import repack

_log = logging.getLogger(__name__)
NOWHERE = -1


@dataclass(eq=False, slots=True)
class PendingTurn:
    """A turn that is being sampled.

    Attributes:
        key: turns with an equal key share a prefix; ``None`` is a score.
        replica: that it is on; `NOWHERE` while it waits for one.
        target: the replica of its next segment.
        failed: replicas that have failed it since its last complete segment.
        call: the request to the replica.
    """

    key: Hashable
    replica: int = NOWHERE
    target: int = NOWHERE
    failed: set[int] = field(default_factory=set)
    call: asyncio.Future[Any] | None = None


class Router:
    """Places turns on replicas: on the one that has the keys and values of their prefix, else on
    the least loaded.

    During an update, a replica is *closed* until it has the weights; one that the update leaves
    behind is *late*. From an update that failed until one that it takes, it is *lost*. Closed and
    lost replicas get no new turns, and late and failed ones only those that no other replica can
    sample; scores are not of late ones.

    Args:
        count: of replicas.
        slots: sequences that a replica decodes at once.
        version: of their weights.
        moves: turns may move between two segments.

    Attributes:
        version: the newest that a replica has taken.
        loads: turns of each replica, those on their way to it included.
    """

    def __init__(self, count: int, slots: int, version: int, *, moves: bool) -> None:
        self.slots, self.version, self.loads, self._moves = slots, version, [0] * count, moves
        self._versions = [version] * count
        self._turns: dict[PendingTurn, None] = {}
        self._closed: set[int] = set()
        self._late: set[int] = set()
        self._lost: dict[int, str] = {}
        self._failed: set[int] = set()
        self._homes: dict[Hashable, int] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[PendingTurn]:
        """Open a turn that is on a replica inside the block.

        Raises:
            InfrastructureError: all replicas are lost.
        """
        turn = PendingTurn(key)
        self._turns[turn] = None
        try:
            await self._place(turn)
            yield turn
        finally:
            self._assign(turn, NOWHERE)
            del self._turns[turn]
            self._repack()

    async def retry(self, turn: PendingTurn, error: InfrastructureError) -> None:
        """Put *turn*, which its replica has failed with *error*, on another one.

        Raises:
            InfrastructureError: *error*, if all others have failed it, too, or are lost.
        """
        if turn.replica not in self._failed:
            _log.warning(
                "replica %d failed; its turns are sampled on others: %s", turn.replica, error
            )
        self._failed.add(turn.replica)
        turn.failed.add(turn.replica)
        self._assign(turn, NOWHERE)
        await self._place(turn, error)

    def succeeded(self, turn: PendingTurn) -> None:
        """Note that the replica of *turn* has sampled a segment; the next one is sampled on the
        target.
        """
        self._failed.discard(turn.replica)
        turn.failed.clear()
        self._assign(turn, turn.target)

    async def _place(self, turn: PendingTurn, error: InfrastructureError | None = None) -> None:
        def left() -> set[int]:
            old = self._late if turn.key is None else set[int]()
            return set(range(len(self.loads))) - turn.failed - self._lost.keys() - old

        await self.until(lambda: not left() or bool(left() - self._closed))
        if not left():
            reasons = "; ".join(
                f"replica {i}: {reason}" for i, reason in sorted(self._lost.items())
            )
            raise error or InfrastructureError(
                f"no replica of the pool has the present weights: {reasons}"
            )
        ready = left() - self._closed
        best = min(ready, key=lambda i: (i in self._failed, i in self._late, self.loads[i], i))
        home = self._homes.get(turn.key, best)
        if (
            home in ready - self._failed - self._late
            and not self.loads[home] >= self.slots > self.loads[best]
        ):
            best = home
        if turn.key is not None:
            self._homes[turn.key] = best
        self._assign(turn, best)

    def _assign(self, turn: PendingTurn, replica: int) -> None:
        self._retarget(turn, replica)
        turn.replica = replica
        self._notify()

    def _retarget(self, turn: PendingTurn, replica: int) -> None:
        for target, change in ((turn.target, -1), (replica, 1)):
            if target != NOWHERE:
                self.loads[target] += change
        turn.target = replica

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until *ready*, which is asked whenever a turn or a replica has changed."""
        while not ready():
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -- weights

    def close(self) -> None:
        """Let no replica take new turns until `open`, and empty as many as possible."""
        self._closed, self._late = set(range(len(self.loads))), set()
        self._repack()

    def open(self, replica: int, *, late: bool = False) -> None:
        """Note that the update of *replica* is over; *late*: it is left behind."""
        self._closed.discard(replica)
        if late:
            self._late.add(replica)
        self._notify()

    def take(self, replica: int, version: int) -> None:
        """Note that *replica* has new weights and works."""
        self.version = self._versions[replica] = version
        self._lost.pop(replica, None)
        self._failed.discard(replica)
        self._late.discard(replica)

    def lose(self, replica: int, error: Exception) -> None:
        """Note that *replica* has missed an update; its turns are sampled on others."""
        _log.warning(
            "replica %d did not take new weights, and is left out until it does: %s", replica, error
        )
        self._lost[replica] = str(error)
        for turn in self._turns:
            if turn.replica == replica and turn.call is not None:
                turn.call.cancel()

    def is_lost(self, replica: int) -> bool:
        return replica in self._lost

    def forget_prefixes(self) -> None:
        """Forget which replica has which prefix: new weights empty the caches of all replicas."""
        self._homes.clear()

    def is_empty(self, replica: int) -> bool:
        """Return whether no turn is on *replica* or on its way to it."""
        return not any(replica in (turn.replica, turn.target) for turn in self._turns)

    def _repack(self) -> None:
        """Send the turns of nearly idle closed replicas to others with the same weights, from their
        next segment on.

        While one of these has more turns than slots, there is no tail, and nothing moves.
        """
        closed = sorted(self._closed) if self._moves else []
        for version in {self._versions[replica] for replica in closed}:
            same = [replica for replica in closed if self._versions[replica] == version]
            loads = [self.loads[replica] for replica in same]
            for source, target, count in (
                repack(loads, self.slots) if max(loads) <= self.slots else ()
            ):
                for turn in [turn for turn in self._turns if turn.target == same[source]][:count]:
                    self._retarget(turn, same[target])
