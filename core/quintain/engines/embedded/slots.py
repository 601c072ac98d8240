"""Requests, and which row of the cache each gets.

Every decision here is a function of the requests that wait and of what the rows hold, never of the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from ...types.sampling import Sampling
from ...types.transcript import Finish, Sampled
from .stopping import StopStrings

WORTHWHILE = 16
"""Shared prefixes shorter than this are computed again rather than copied."""


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One call of ``sample`` on its way.

    Attributes:
        ids: the prompt.
        limit: new tokens at most.
        stop_ids, stops: what ends it.
        order: sorts requests that wait together.
        random: gives one number per token, so the n-th token depends on the seed and its logits alone.
        tokens, logps, versions: what was sampled so far; equal lengths.
    """

    ids: tuple[int, ...]
    sampling: Sampling
    limit: int
    stop_ids: frozenset[int]
    stops: StopStrings
    order: tuple[object, ...]
    random: Random
    future: asyncio.Future[Sampled]
    worker: object = None
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, tokens: Sequence[int], logps: Sequence[float], version: int) -> None:
        """Append what was sampled."""
        self.tokens += tokens
        self.logps += logps
        self.versions += [version] * len(tokens)

    def finish(self) -> tuple[Finish, str | int | None] | None:
        """Why the newest token ends it, and the token or string that it stopped at; ``None`` where it goes on."""
        if self.tokens[-1] in self.stop_ids:
            return "stop", self.tokens[-1]
        if self.stops and (string := self.stops.found(self.tokens)) is not None:
            return "stop", string
        return ("length", None) if len(self.tokens) >= self.limit else None

    def sampled(self, finish: Finish, stop: str | int | None = None) -> Sampled:
        return Sampled(
            ids=tuple(self.tokens), logps=tuple(self.logps), versions=tuple(self.versions), finish=finish, stop=stop
        )

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens whose keys and values its row holds: all but the newest."""
        return (*self.ids, *self.tokens[:-1])


@dataclass(slots=True)
class CacheRow:
    """A row of the cache: who decodes in it, and which tokens it holds."""

    request: Request | None = None
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What to do to let requests in: *copies* first (all read before any write), then *extensions*, then *followers*.

    Attributes:
        copies: (source row, target row, tokens).
        extensions: (row, tokens it holds already); the rest of its prompt is to be computed.
        followers: (row of the leader, row); equal prompts, so copy the leader's whole prompt.
    """

    copies: tuple[tuple[int, int, int], ...]
    extensions: tuple[tuple[int, int], ...]
    followers: tuple[tuple[int, int], ...]


class Slots:
    """The rows, at most *count* of them."""

    def __init__(self, count: int) -> None:
        self.rows = [CacheRow() for _ in range(count)]

    @property
    def live(self) -> list[int]:
        """Rows with a request, ascending."""
        return [i for i, row in enumerate(self.rows) if row.request is not None]

    def free(self, index: int) -> None:
        """End the request of a row; its tokens stay for a later prompt that begins with them."""
        row = self.rows[index]
        if row.request is not None and row.request.tokens:
            row.held = row.request.cached
        row.request = None

    def forget(self) -> None:
        """Drop what idle rows hold."""
        for row in self.rows:
            if row.request is None:
                row.held = ()

    def admit(self, waiting: Iterable[Request]) -> Admission:
        """Give rows to as many of *waiting* as there are, whole groups of equal prompts together where possible."""
        idle = [i for i, row in enumerate(self.rows) if row.request is None]
        groups = by_prompt(waiting)
        sources = {ids: self._best_source(ids) for ids in groups} if any(row.held for row in self.rows) else {}
        copies: list[tuple[int, int, int]] = []
        extensions: list[tuple[int, int]] = []
        followers: list[tuple[int, int]] = []
        # those whose earlier turn still lies in an idle row come first, before another prompt takes that row
        for ids in sorted(groups, key=lambda ids: not self._is_idle(sources.get(ids))):
            if not idle:
                break
            source, shared = sources.get(ids) or (None, 0)
            leader = source if source in idle else self._coldest(idle)
            assert leader is not None
            if source is not None and source != leader:
                copies.append((source, leader, shared))
            extensions.append((leader, shared))
            followers += [(leader, row) for row in self._seat(groups[ids], leader, idle)]
        for row in self.rows:
            if row.request is not None:
                row.held = row.request.ids
        return Admission(copies=tuple(copies), extensions=tuple(extensions), followers=tuple(followers))

    def _seat(self, group: Sequence[Request], leader: int, idle: list[int]) -> list[int]:
        """Give the first of *group* the row *leader*, the others rows of *idle* as far as they go; the latter rows."""
        idle.remove(leader)
        self.rows[leader].request = group[0]
        seated: list[int] = []
        for request in group[1 : 1 + len(idle)]:
            row = self._coldest(idle)
            idle.remove(row)
            self.rows[row].request = request
            seated.append(row)
        return seated

    def compact(self) -> list[tuple[int, int, int]]:
        """Move the highest live rows to the lowest idle ones, so that the live come first: (source, target, tokens)."""
        moves: list[tuple[int, int, int]] = []
        live = self.live
        for target in range(len(live)):
            if self.rows[target].request is None:
                source = live.pop()
                request = self.rows[source].request
                assert request is not None
                self.rows[target], self.rows[source] = CacheRow(request, request.ids), CacheRow()
                moves.append((source, target, len(request.cached)))
        return moves

    def _is_idle(self, source: tuple[int, int] | None) -> bool:
        return source is not None and self.rows[source[0]].request is None

    def _coldest(self, idle: list[int]) -> int:
        """The idle row whose content is worth least; the lowest among equals."""
        return min(idle, key=lambda i: (len(self.rows[i].held), i))

    def _best_source(self, ids: tuple[int, ...]) -> tuple[int, int] | None:
        """The row that shares the longest prefix with *ids*, and how long (the last token is always computed anew)."""
        best: tuple[int, int] | None = None
        for i, row in enumerate(self.rows):
            if row.held[:WORTHWHILE] != ids[:WORTHWHILE]:
                continue
            shared = min(common_prefix(row.held, ids), len(ids) - 1)
            if shared >= WORTHWHILE and (best is None or shared > best[1]):
                best = (i, shared)
        return best


def by_prompt(waiting: Iterable[Request]) -> dict[tuple[int, ...], list[Request]]:
    """Requests in order, equal prompts together at the place of their first."""
    groups: dict[tuple[int, ...], list[Request]] = {}
    for request in sorted(waiting, key=lambda r: r.order):
        groups.setdefault(request.ids, []).append(request)
    return groups


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection over slices (compared in C)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
