"""The token-exact record of one conversation.

A transcript is a tree of branches that share prefixes. Nearly always there is one branch; another
is added only if history was rewritten (a template dropped an old thought, or the policy compacted
its context), so that the tokens sampled before and after the rewrite each keep the context they
were sampled in. A sampled token is trained on once, in the branch it was sampled in; every other
token is context.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from operator import eq
from typing import Any, Literal

Finish = Literal["stop", "length", "cancelled"]


class TokenSource(IntEnum):
    """Where a token came from. Only `MODEL` tokens are trained on."""

    TEMPLATE = 0  # written by the chat template: role markers, separators
    PROMPT = 1  # text of the task, the system or a user
    MODEL = 2  # sampled by the policy
    TOOL = 3  # the result of a tool
    COPY = 4  # earlier text of the policy, rendered again by the template
    FORCED = 5  # inserted into the policy's turn by a thinking budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """The tokens that an engine sampled for one turn.

    ``ids``, ``logps`` and ``versions`` have equal length: the new tokens (a stop token included),
    their log-probs under the sampling policy (temperature applied, before any truncation) and the
    weight version that sampled each. ``stop`` is the string or id that ended the turn. ``forced``
    is the half-open span of tokens that a thinking budget inserted between the sampled ones:
    log-prob 0, version -1.

    ``experts`` are those of a mixture that computed the tokens, from the first of the prompt on; the
    last token of the turn was not computed yet. A text has a character for each expert, layer by
    layer, "0" for expert 0. It is empty for a token, and the tuple for a turn, of which the engine
    recorded none.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish
    stop: str | int | None = None
    forced: tuple[int, int] = (0, 0)
    experts: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return len(self.ids) - (self.forced[1] - self.forced[0])


class Packed:
    """A field of a frozen record that holds a tuple of numbers as bytes.

    A run keeps millions of tokens, each with four numbers. A tuple takes 8 bytes of pointer and 24
    to 32 of object for each of them, the packed form 1 to 8.

    Args:
        stored: the attribute that holds the bytes: one of the code, then the numbers.
        codes: of `struct`, from small to large. The first that keeps every number exactly is taken.
    """

    def __init__(self, stored: str, codes: str) -> None:
        self._stored = stored
        self._codes = codes

    def __get__(self, record: object, owner: type) -> tuple[Any, ...]:
        # A dataclass reads the default of a field from its class, where nothing is stored. b"b"
        # unpacks to ().
        stored: bytes = getattr(record, self._stored, b"b")
        code = stored[:1].decode()
        data = stored[1:]
        return struct.unpack(f"{len(data) // struct.calcsize(code)}{code}", data)

    def __set__(self, record: object, values: Sequence[Any]) -> None:
        if isinstance(values, (bytes, bytearray)):  # numbers, where an array would take its memory
            values = array("B", values)
        for code in self._codes:
            with suppress(TypeError, OverflowError):
                packed = array(code, values)
                # Single precision rounds instead of refusing, so it counts only if it is exact.
                if code != "f" or all(map(eq, packed, values)):
                    stored = code.encode() + packed.tobytes()
                    return object.__setattr__(record, self._stored, stored)
        raise ValueError(
            f"{self._stored[1:]} must be numbers within struct's {self._codes[-1]!r}: "
            f"{values!r:.99}"
        )


@dataclass(frozen=True)
class Branch:
    """The tokens of one branch after the first *fork* tokens, which it shares with its *parent* (-1
    for the root).

    ``ids``, ``sources``, ``logps`` and ``versions`` have equal length. ``logps`` holds the sampling
    log-prob where the source is `TokenSource.MODEL` and 0 elsewhere; ``versions`` the weight
    version there and -1 elsewhere. ``experts`` are those of its last turn, from the start of the
    conversation, see `Sampled`.
    """

    # makes pydantic set the attributes of a restored record, not its __dict__
    __slots__ = ("__dict__",)
    parent: int = -1
    fork: int = 0
    ids: tuple[int, ...] = Packed("_ids", "hiq")  # type: ignore[assignment]
    sources: tuple[int, ...] = Packed("_sources", "bq")  # type: ignore[assignment]
    logps: tuple[float, ...] = Packed("_logps", "fd")  # type: ignore[assignment]
    versions: tuple[int, ...] = Packed("_versions", "bhiq")  # type: ignore[assignment]
    experts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.sources) == len(self.logps) == len(self.versions):
            raise ValueError("the columns of a branch differ in length")


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One sequence for the learner: ``mask`` is true at the tokens to train on; all columns have
    equal length.

    ``logps`` and ``versions`` are the sampler's where ``mask`` is true, 0 and -1 elsewhere.
    ``experts`` are as in `Sampled`, and not a column.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logps: tuple[float, ...]
    versions: tuple[int, ...]
    experts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The branches of one conversation, and the policy that they were sampled from.

    ``player`` is whose conversation it is: ``None`` for the first one of a player, which has the
    player's name. Further ones (a history that was rewritten, a sub-agent, a fork) have names of
    their own.
    """

    branches: tuple[Branch, ...] = ()
    policy: str = "policy"
    tokenizer: str = ""
    temperature: float = 1.0
    player: str | None = None

    def path(self, branch: int) -> Branch:
        """Return the tokens of a branch from the start of the conversation, as one root branch."""
        return Branch(-1, 0, *(*self._paths()[branch], self.branches[branch].experts))

    def _paths(self) -> list[tuple[tuple[Any, ...], ...]]:
        """Return the columns of each branch from the start of the conversation; parents come before
        their children.
        """
        paths: list[tuple[tuple[Any, ...], ...]] = []
        for branch in self.branches:
            head = (
                [column[: branch.fork] for column in paths[branch.parent]]
                if branch.parent >= 0
                else [()] * 4
            )
            columns = (branch.ids, branch.sources, branch.logps, branch.versions)
            paths.append(tuple(before + new for before, new in zip(head, columns, strict=True)))
        return paths

    def sequences(self) -> list[TrainingSequence]:
        """Return the sequences to train on: one per branch with sampled tokens of its own, cut
        after the last of them.
        """
        sequences: list[TrainingSequence] = []
        for branch, (ids, _, logps, versions) in zip(self.branches, self._paths(), strict=True):
            head = (False,) * branch.fork
            mask = (*head, *map(TokenSource.MODEL.__eq__, branch.sources))
            if True not in mask:
                continue
            end = len(mask) - mask[::-1].index(True)
            sequences.append(
                TrainingSequence(
                    ids=ids[:end],
                    mask=mask[:end],
                    logps=tuple([x if m else 0.0 for x, m in zip(logps[:end], mask, strict=False)]),
                    versions=tuple(
                        [x if m else -1 for x, m in zip(versions[:end], mask, strict=False)]
                    ),
                    experts=branch.experts,
                )
            )
        return sequences

    @cached_property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled, over all branches."""
        return sum(branch.sources.count(TokenSource.MODEL) for branch in self.branches)


class Recorder:
    """Builds a `Transcript` while an episode runs.

    Thousands of episodes wait at once, so that numbers are kept in arrays: 21 bytes a token.
    """

    def __init__(self) -> None:
        self._branches: list[Branch] = []
        self._parent = -1
        self._fork = 0
        # of each token of the open branch, from the start of the conversation
        self._path = array("q")  # a token of a picture has more than 32 bits
        self._sources = bytearray()
        self._logps = array("d")
        self._versions = array("i")
        self._experts: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of tokens of the open branch."""
        return len(self._path)

    @property
    def ids(self) -> array[int]:
        """The tokens of the open branch, from the start of the conversation: a copy."""
        return self._path[:]

    @property
    def last(self) -> int:
        """The last token of the open branch."""
        return self._path[-1]

    def head(self, tokens: int) -> tuple[array[int], bytearray]:
        """Return the first *tokens* of the open branch, and their sources."""
        return self._path[:tokens], self._sources[:tokens]

    def add(self, ids: Sequence[int], sources: Sequence[int]) -> None:
        """Append tokens that were not sampled."""
        self._path.extend(ids)
        self._sources.extend(sources)
        self._logps.extend(array("d", [0.0]) * len(ids))
        self._versions.extend(array("i", [-1]) * len(ids))

    def sampled(self, s: Sampled) -> None:
        """Append the tokens of a turn exactly as the engine sampled them."""
        start, end = s.forced
        sources = bytearray([TokenSource.MODEL]) * len(s.ids)
        sources[start:end] = bytes([TokenSource.FORCED]) * (end - start)
        self._path.extend(s.ids)
        self._sources.extend(sources)
        self._logps.extend(s.logps)
        self._versions.extend(s.versions)
        self._experts = s.experts

    def branch(self, ids: Sequence[int], sources: Sequence[int]) -> None:
        """Start a branch whose path is *ids*; the prefix that it shares with the open branch is
        linked, not copied.
        """
        shared = 0
        for old, new in zip(self._path, ids, strict=False):
            if old != new:
                break
            shared += 1
        self._branches.append(self._open_branch())
        self._parent = len(self._branches) - 1
        self._fork = shared
        for column in self._columns():
            del column[shared:]
        self._experts = ()
        self.add(ids[shared:], sources[shared:])

    def _columns(self) -> tuple[Any, ...]:
        return self._path, self._sources, self._logps, self._versions

    def _open_branch(self) -> Branch:
        own = [column[self._fork :] for column in self._columns()]
        return Branch(self._parent, self._fork, *(*own, self._experts))

    def transcript(self, **fields: object) -> Transcript:
        """Return the record so far; recording may continue."""
        last = (self._open_branch(),) if len(self._path) > self._fork or not self._branches else ()
        return Transcript(branches=(*self._branches, *last), **fields)  # type: ignore[arg-type]
