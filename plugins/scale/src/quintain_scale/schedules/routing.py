"""Which replica of a pool samples which turn, and which replicas take turns at all."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from quintain import InfrastructureError

from .prefixes import PrefixIndex
from .repack import repack

_log = logging.getLogger(__name__)
NOWHERE = -1
MOST_DEATHS = 4
"""Replicas that may die while they sample one turn; it may be the turn that kills them."""


@dataclass(eq=False, slots=True)
class PendingTurn:
    """A turn that is being sampled.

    Attributes:
        blocks: names of the blocks of its prompt, see `PrefixIndex`; ``None`` is a score.
        replica: that it is on; `NOWHERE` while it waits for one.
        target: the replica of its next segment.
        failed: replicas that have failed it since its last complete segment.
        deaths: replicas that died while it was on them.
        lost: its replica was lost, and its call is cancelled.
        call: the request to the replica.
    """

    blocks: Sequence[int] | None
    replica: int = NOWHERE
    target: int = NOWHERE
    failed: set[int] = field(default_factory=set)
    deaths: int = 0
    lost: bool = False
    call: asyncio.Future[Any] | None = None


@dataclass(eq=False, slots=True)
class _Waiting:
    turn: PendingTurn
    error: InfrastructureError | None
    seated: asyncio.Future[None]


class Router:
    """Places turns on replicas: on the one that holds the longest prefix of their prompt, else on
    the least loaded.

    During an update, a replica is *closed* until it has the weights; one that the update leaves
    behind is *late*. From a failure until it has the weights of now, a replica is *lost*; if
    somebody brings it back, it is *coming*, too, and turns that no other replica can take wait for
    it. One that is removed is *leaving*. Closed, lost and leaving replicas get no new turns, and
    late and failed ones only those that no other replica can sample; scores are not of late ones.

    Args:
        count: of replicas.
        slots: sequences that a replica decodes at once.
        version: of their weights.
        moves: turns may move between two segments.

    Attributes:
        version: the newest that a replica has taken.
        loads: turns of each replica, those on their way to it included.
        prefixes: that the replicas hold.
    """

    def __init__(self, count: int, slots: int, version: int, *, moves: bool) -> None:
        self.slots, self.version, self.loads, self._moves = slots, version, [0] * count, moves
        self.prefixes = PrefixIndex()
        self._versions = [version] * count
        self._turns: dict[PendingTurn, None] = {}
        self._closed: set[int] = set()
        self._late: set[int] = set()
        self._lost: dict[int, str] = {}
        self._coming: set[int] = set()
        self._leaving: set[int] = set()
        self._failed: set[int] = set()
        self._limits: dict[int, int] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._queue: deque[_Waiting] = deque()

    @asynccontextmanager
    async def turn(self, blocks: Sequence[int] | None) -> AsyncIterator[PendingTurn]:
        """Open a turn that is on a replica inside the block.

        Raises:
            InfrastructureError: all replicas are lost, and none comes back.
        """
        turn = PendingTurn(blocks)
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
            InfrastructureError: *error*, if all others have failed it, too, or are lost, or if too
                many have died with it.
        """
        if turn.replica not in self._failed:
            _log.warning(
                "replica %d failed; its turns are sampled on others: %s", turn.replica, error
            )
        self._failed.add(turn.replica)
        turn.failed.add(turn.replica)
        turn.lost, turn.call = False, None
        self._assign(turn, NOWHERE)
        if turn.deaths >= MOST_DEATHS:
            raise error
        await self._place(turn, error)

    def succeeded(self, turn: PendingTurn, blocks: Sequence[int] = ()) -> None:
        """Note that the replica of *turn* has sampled a segment and holds *blocks* now; the next
        segment is sampled on the target.
        """
        self._failed.discard(turn.replica)
        turn.failed.clear()
        turn.deaths = 0
        self.prefixes.add(blocks, turn.replica)
        self._assign(turn, turn.target)

    async def _place(self, turn: PendingTurn, error: InfrastructureError | None = None) -> None:
        if self._seat(turn, error):
            self._wake()
            return
        waiting = _Waiting(turn, error, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        await waiting.seated

    def _seat(self, turn: PendingTurn, error: InfrastructureError | None) -> bool:
        """Give *turn* a replica; return whether one is free.

        Raises:
            InfrastructureError: none can be any more.
        """
        able = self.serving() - turn.failed
        if turn.blocks is None:
            able -= self._late
        if not able and not self._coming:
            reasons = "; ".join(
                f"replica {i}: {reason}" for i, reason in sorted(self._lost.items())
            )
            raise error or InfrastructureError(
                f"no replica of the pool has the present weights: {reasons}"
            )
        if free := [i for i in able - self._closed if self._has_room(i)]:
            turn.replica = self._choose(turn.blocks, free)
            self._retarget(turn, turn.replica)
            if turn.blocks is not None:
                self.prefixes.add(turn.blocks, turn.replica)
        return bool(free)

    def _choose(self, blocks: Sequence[int] | None, free: Sequence[int]) -> int:
        """Return the best of the *free* replicas: that of the prefix, if this is at least half of
        the prompt and the replica is not much busier than the least loaded one.
        """
        best = min(free, key=lambda i: (i in self._failed, i in self._late, self.loads[i], i))
        held = {
            i: count
            for i, count in self.prefixes.held(blocks or ()).items()
            if i in free and i not in self._failed and i not in self._late
        }
        if not held:
            return best
        home = max(held, key=lambda i: (held[i], -self.loads[i], -i))
        busier = self.loads[home] - self.loads[best] > max(1, self.slots // 2)
        full = self.loads[home] >= self.slots > self.loads[best]
        return best if busier or full or 2 * held[home] < len(blocks or ()) else home

    def serving(self) -> set[int]:
        """Return the replicas that are neither lost nor leaving."""
        return set(range(len(self.loads))) - self._lost.keys() - self._leaving

    def _has_room(self, replica: int) -> bool:
        limit = self._limits.get(replica)
        return limit is None or self.loads[replica] < limit

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
        self._seat_waiting()
        self._wake()

    def _seat_waiting(self) -> None:
        """Place waiting turns, those that came first before others, while a replica has room."""
        skipped: deque[_Waiting] = deque()
        while self._queue:
            serving = self.serving()
            may_come = bool(serving or self._coming)
            if may_come and not any(self._has_room(i) for i in serving - self._closed):
                break
            waiting = self._queue.popleft()
            if waiting.seated.done():
                continue
            try:
                seated = self._seat(waiting.turn, waiting.error)
            except InfrastructureError as error:
                waiting.seated.set_exception(error)
                continue
            if seated:
                waiting.seated.set_result(None)
            else:  # it may not have the replica that has room
                skipped.append(waiting)
        self._queue.extendleft(reversed(skipped))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -- replicas that come and go

    def limit(self, replica: int, turns: int | None) -> None:
        """Let *replica* have so many turns at once, others wait; ``None`` lifts the limit."""
        if turns is None:
            self._limits.pop(replica, None)
        else:
            self._limits[replica] = turns
        self._notify()

    def leave(self, replica: int) -> None:
        """Give *replica* no new turns from now on; it ends those that it has."""
        self._leaving.add(replica)
        self._coming.discard(replica)
        self._notify()

    def join(self, replica: int) -> None:
        """Expect *replica*, which starts; its number is one that was left, or the next one."""
        if replica == len(self.loads):
            self.loads.append(0)
            self._versions.append(self.version)
        self._leaving.discard(replica)
        self._lost[replica] = "starts"
        self._coming.add(replica)
        self._limits.pop(replica, None)

    @property
    def is_hopeless(self) -> bool:
        """Whether no replica takes turns, and none will."""
        return not (self.serving() or self._coming)

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

    def open_all(self) -> None:
        """Note that no update runs any more."""
        self._closed.clear()
        self._notify()

    def has(self, version: int) -> bool:
        """Return whether a replica that takes turns has the weights of *version*."""
        return any(self._versions[replica] == version for replica in self.serving())

    def take(self, replica: int, version: int) -> None:
        """Note that *replica* has new weights and works."""
        self.version = self._versions[replica] = version
        if self._lost.pop(replica, None) is not None:
            for turn in self._turns:
                turn.failed.discard(replica)  # it is a new one
        for names in (self._coming, self._failed, self._late):
            names.discard(replica)
        self._notify()

    def lose(self, replica: int, why: str, *, coming: bool = False) -> None:
        """Note that *replica* has not the weights of now; its turns are sampled on others."""
        self._lost[replica] = why
        (self._coming.add if coming else self._coming.discard)(replica)
        self.prefixes.forget(replica)
        for turn in self._turns:
            if turn.replica == replica and turn.call is not None:
                turn.deaths += coming
                turn.lost = True
                turn.call.cancel()
        self._notify()

    def is_lost(self, replica: int) -> bool:
        """Return whether *replica* has not the weights of now."""
        return replica in self._lost

    def version_of(self, replica: int) -> int:
        """Return the version of the weights that *replica* took last."""
        return self._versions[replica]

    def is_empty(self, replica: int) -> bool:
        """Return whether no turn is on *replica* or on its way to it."""
        return not any(replica in (turn.replica, turn.target) for turn in self._turns)

    def _repack(self) -> None:
        """Send the turns of nearly idle closed replicas to others with the same weights, from their
        next segment on.

        While one of these has more turns than slots, there is no tail, and nothing moves.
        """
        closed = sorted(self._closed - self._lost.keys()) if self._moves else []
        for version in {self._versions[replica] for replica in closed}:
            same = [replica for replica in closed if self._versions[replica] == version]
            loads = [self.loads[replica] for replica in same]
            for source, target, count in (
                repack(loads, self.slots) if max(loads) <= self.slots else ()
            ):
                for turn in [turn for turn in self._turns if turn.target == same[source]][:count]:
                    self._retarget(turn, same[target])
