"""Requests, and the row of the cache that each gets.

Every decision here depends on the waiting requests and the content of the rows, never on the order
of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from ..errors import InfrastructureError
from ..models.prefix_tree import LONG_START, common_length
from ..rollouts.chat.stop_strings import StopStrings
from ..types.sampling import Sampling
from ..types.transcript import Finish, Sampled

WORTHWHILE = 16
"""Common prefixes shorter than this are computed again rather than copied."""


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One call of ``sample`` that waits for its tokens.

    Attributes:
        ids: the prompt.
        limit: maximum of new tokens.
        stop_ids, stops: tokens and strings that end it.
        order: sort key among waiting requests.
        random: gives one number per token, so the n-th token depends on the seed and its logits
            alone.
        episode: that it belongs to, if one was registered.
        tokens, logps, versions: the reply so far; equal lengths.
        stale: some of its keys and values are of older weights, so no other request may copy them.
    """

    ids: tuple[int, ...]
    sampling: Sampling
    limit: int
    stop_ids: frozenset[int]
    stops: StopStrings
    order: tuple[object, ...]
    random: Random
    future: asyncio.Future[Sampled]
    episode: object = None
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stale: bool = False

    def append(self, tokens: Sequence[int], logps: Sequence[float], version: int) -> None:
        """Append sampled tokens."""
        self.tokens += tokens
        self.logps += logps
        self.versions += [version] * len(tokens)

    def finish(self) -> tuple[Finish, str | int | None] | None:
        """Return why the newest token ends the reply, and the stop token or string; ``None`` if it
        does not.
        """
        if self.tokens[-1] in self.stop_ids:
            return "stop", self.tokens[-1]
        string = self.stops.found(self.tokens) if self.stops else None
        if string is not None:
            return "stop", string
        if len(self.tokens) >= self.limit:
            return "length", None
        return None

    def sampled(
        self, finish: Finish, stop: str | int | None = None, experts: tuple[str, ...] = ()
    ) -> Sampled:
        """Return the turn, which ended by *finish*."""
        return Sampled(
            ids=tuple(self.tokens),
            logps=tuple(self.logps),
            versions=tuple(self.versions),
            finish=finish,
            stop=stop,
            experts=experts,
        )

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens whose keys and values are in its row: all but the newest."""
        return (*self.ids, *self.tokens[:-1])


@dataclass(slots=True)
class CacheRow:
    """A row of the cache: its request, and the tokens whose keys and values it holds, of which
    *version* of the weights.
    """

    request: Request | None = None
    cached: tuple[int, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The work for newly accepted requests: *copies* first (all read before any write), then
    *extensions*, then *branches*, then *followers*.

    Attributes:
        copies: (source row, target row, tokens).
        extensions: (row, tokens that it holds); the rest of its prompt must be computed.
        branches: (row of an extension, row, tokens): its prompt begins as that of the other does,
            so it copies these tokens, and the rest must be computed.
        followers: (row of the leader, row): prompts are equal, so the row copies the leader's.
    """

    copies: tuple[tuple[int, int, int], ...]
    extensions: tuple[tuple[int, int], ...]
    branches: tuple[tuple[int, int, int], ...]
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
        """End the request of a row. Its tokens stay, for a later prompt that begins with them."""
        row = self.rows[index]
        if row.request is not None and row.request.tokens:
            row.cached = () if row.request.stale else row.request.cached
            row.version = row.request.versions[-1]
        row.request = None

    def forget(self, *, stale: bool = False) -> None:
        """Drop the content of idle rows; *stale*: that of all rows, for later requests."""
        for row in self.rows:
            if row.request is None:
                row.cached = ()
            elif stale:
                row.request.stale = True
                row.cached = ()

    def check_fresh(self, version: int) -> None:
        """Raise an `InfrastructureError` if an idle row offers content of other weights."""
        for i, row in enumerate(self.rows):
            if row.request is None and row.cached and row.version != version:
                raise InfrastructureError(
                    f"row {i} of the prefix cache is of version {row.version} after the update to "
                    f"version {version}"
                )

    def admit(self, waiting: Iterable[Request]) -> Admission:
        """Give rows to as many of *waiting* as fit, groups of equal prompts together where
        possible.
        """
        idle = [i for i, row in enumerate(self.rows) if row.request is None]
        groups = by_prompt(waiting)
        # By prompt: the row that holds most of its beginning, and how many tokens.
        sources: dict[tuple[int, ...], tuple[int, int] | None] = {}
        if any(row.cached for row in self.rows):
            sources = {ids: self._best_source(ids) for ids in groups}

        def has_no_idle_source(ids: tuple[int, ...]) -> bool:
            source = sources.get(ids)
            return source is None or self.rows[source[0]].request is not None

        copies: list[tuple[int, int, int]] = []
        extensions: list[tuple[int, int]] = []
        branches: list[tuple[int, int, int]] = []
        followers: list[tuple[int, int]] = []
        # Prompts that are computed here, by their first tokens: each with its row.
        begun = dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]]()
        first = _shares_most(groups)
        # Prompts whose earlier turn is still in an idle row come first, before another prompt takes
        # that row, and then those that others begin like.
        for ids in sorted(groups, key=lambda ids: (has_no_idle_source(ids), ids not in first)):
            if not idle:
                break
            # The first request of a prompt computes it, in the row that holds its beginning or in
            # one that gets a copy of that; the others copy it whole.
            place, shared = sources.get(ids) or (-1, 0)
            alike = begun.setdefault(ids[:LONG_START], [])
            branches_at, source = max(
                ((min(common_length(other, ids), len(ids) - 1), row) for other, row in alike),
                default=(0, -1),
            )
            if branches_at > max(shared, LONG_START - 1):
                leader = self._coldest(idle)
                branches.append((source, leader, branches_at))
            else:
                leader = place if place in idle else self._coldest(idle)
                if shared and leader != place:
                    copies.append((place, leader, shared))
                alike.append((ids, leader))
                extensions.append((leader, shared))
            followers += [(leader, row) for row in self._seat(groups[ids], leader, idle)]
        # Later requests may copy the prompts of live rows. Their replies come when a row is freed.
        for row in self.rows:
            if row.request is not None:
                row.cached = () if row.request.stale else row.request.ids
        return Admission(
            copies=tuple(copies),
            extensions=tuple(extensions),
            branches=tuple(branches),
            followers=tuple(followers),
        )

    def _seat(self, group: Sequence[Request], leader: int, idle: list[int]) -> list[int]:
        """Give the first of *group* the row *leader*, others rows of *idle* while there are any;
        returns the latter.
        """
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
        """Plan moves (source, target, tokens) of the highest live rows to the lowest idle ones, so
        that live rows come first and a step runs over no idle row.
        """
        moves: list[tuple[int, int, int]] = []
        live = self.live
        for target in range(len(live)):
            if self.rows[target].request is None:
                source = live.pop()
                request = self.rows[source].request
                assert request is not None
                content = () if request.stale else request.ids
                self.rows[target] = CacheRow(request, content)
                self.rows[source] = CacheRow()
                moves.append((source, target, len(request.cached)))
        return moves

    def _coldest(self, idle: list[int]) -> int:
        """Return the idle row with the least content; the lowest among equals."""
        return min(idle, key=lambda i: (len(self.rows[i].cached), i))

    def _best_source(self, ids: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the row with the longest common prefix with *ids*, and its length. The last token
        of *ids* never counts: its logits must be computed.
        """
        best: tuple[int, int] | None = None
        for i, row in enumerate(self.rows):
            if row.cached[:WORTHWHILE] != ids[:WORTHWHILE]:
                continue
            shared = min(common_length(row.cached, ids), len(ids) - 1)
            if shared >= WORTHWHILE and (best is None or shared > best[1]):
                best = (i, shared)
        return best


def by_prompt(waiting: Iterable[Request]) -> dict[tuple[int, ...], list[Request]]:
    """Sort requests and group those of equal prompts, at the position of their first."""
    groups: dict[tuple[int, ...], list[Request]] = {}
    for request in sorted(waiting, key=lambda r: r.order):
        groups.setdefault(request.ids, []).append(request)
    return groups


def _shares_most(prompts: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return, of the prompts with the same first `LONG_START` tokens, the one that has most in common
    with another.
    """
    found: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
    for one, other in pairwise(sorted(ids for ids in prompts if len(ids) > LONG_START)):
        shared, start = common_length(one, other), other[:LONG_START]
        if shared > max(LONG_START - 1, found.get(start, (0, ()))[0]):
            found[start] = shared, other
    return {ids for _, ids in found.values()}
