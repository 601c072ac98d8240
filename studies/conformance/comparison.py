"""Compares what a capture layer would train with what the engine sampled, token by token."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from quintain.types import TrainingSequence

from .truth import SampledTurn

__all__ = ["COLUMNS", "Column", "TokenDifference", "TrainingSequence", "compared"]

Column = Literal["ids", "mask", "logps", "versions", "replies", "prompts"]
COLUMNS: tuple[Column, ...] = ("ids", "mask", "logps", "versions", "replies", "prompts")
"""What is compared: sampled tokens in their contexts, which of them train, their log-probs and
weight versions, the replies that the client read, and what the engine got of what it sent.
"""
TOLERANCE = 1e-6
"""Of log-probs: single precision is kept, half is not."""


@dataclass(frozen=True)
class TokenDifference:
    """One thing that is not as in the truth."""

    column: Column
    text: str

    def __str__(self) -> str:
        return f"{self.column}: {self.text}"


@dataclass(frozen=True)
class _Token:
    """A token with the digest of all tokens up to it, and where it stands."""

    path: bytes
    id: int
    logp: float | None
    version: int | None
    place: str


def compared(
    log: Sequence[SampledTurn],
    sequences: Sequence[TrainingSequence],
    *,
    unread: frozenset[int] | set[int] = frozenset(),
    columns: Sequence[Column] = COLUMNS,
) -> list[TokenDifference]:
    """Return how *sequences* differ from *log*; nothing if each sampled token trains exactly once,
    after the tokens that it was sampled after, with its log-prob and version.

    Args:
        unread: numbers of turns that may also not train.
        columns: that the layer keeps.
    """
    truth: dict[bytes, list[_Token]] = defaultdict(list)
    optional: Counter[bytes] = Counter()
    for number, turn in enumerate(log):
        for token in _of_turn(turn, number):
            truth[token.path].append(token)
            optional[token.path] += number in unread
    trained: dict[bytes, list[_Token]] = defaultdict(list)
    present: set[bytes] = set()
    for number, sequence in enumerate(sequences):
        for token, masked in _of_sequence(sequence, number):
            present.add(token.path)
            if masked:
                trained[token.path].append(token)
    differences: list[TokenDifference] = []
    for path, tokens in truth.items():
        found = trained.get(path, [])
        if len(found) < len(tokens) - optional[path]:
            why = "does not train" if path in present else "is in no sequence after its context"
            column: Column = "mask" if path in present else "ids"
            differences.append(TokenDifference(column, f"{tokens[-1].place} {why}"))
        if len(found) > len(tokens):
            text = f"{tokens[0].place} trains {len(found)} times, sampled {len(tokens)} times"
            differences.append(TokenDifference("mask", text))
        differences += _values(tokens, found[: len(tokens)], columns)
    contexts = {path for turn in log for path in _paths((*turn.context, *turn.ids))}
    for path, found in trained.items():
        if path not in truth:
            column = "mask" if path in contexts else "ids"
            text = f"{found[0].place} trains and was not sampled there"
            differences.append(TokenDifference(column, text))
    return [d for d in differences if d.column in columns]


def _of_turn(turn: SampledTurn, number: int) -> Iterator[_Token]:
    paths = _paths((*turn.context, *turn.ids))[len(turn.context) :]
    for i, (path, token) in enumerate(zip(paths, turn.ids, strict=True)):
        place = f"turn {number + 1}, token {i + 1} of {len(turn.ids)} (id {token})"
        yield _Token(path, token, turn.logps[i], turn.versions[i], place)


def _of_sequence(sequence: TrainingSequence, number: int) -> Iterator[tuple[_Token, bool]]:
    paths = _paths(sequence.ids)
    for i, (path, token, masked) in enumerate(zip(paths, sequence.ids, sequence.mask, strict=True)):
        place = f"sequence {number + 1}, position {i} (id {token})"
        logp = sequence.logps[i] if sequence.logps else None
        version = sequence.versions[i] if sequence.versions else None
        yield _Token(path, token, logp, version, place), masked


def _values(
    tokens: Sequence[_Token], found: Sequence[_Token], columns: Sequence[Column]
) -> Iterator[TokenDifference]:
    """Yield differences in log-probs and versions; tokens that were sampled twice alike are matched
    in order.
    """
    if "logps" in columns:
        expected = sorted(t.logp for t in tokens if t.logp is not None)
        for token in found:
            logp = token.logp
            nearest = min(expected, key=lambda x: abs(x - logp), default=None) if logp else None
            if nearest is None or logp is None or not abs(nearest - logp) <= TOLERANCE:
                text = f"{tokens[0].place} has {logp}, sampled with {tokens[0].logp}"
                yield TokenDifference("logps", text)
            else:
                expected.remove(nearest)
    if "versions" in columns:
        left = Counter(t.version for t in tokens)
        for token in found:
            if token.version is None or not left[token.version]:
                text = f"{tokens[0].place} has {token.version}, sampled by {tokens[0].version}"
                yield TokenDifference("versions", text)
            left[token.version] -= 1


def _paths(ids: Sequence[int]) -> list[bytes]:
    """Return the digest of all tokens up to each one, itself included."""
    digest = hashlib.blake2b(digest_size=16)
    paths = []
    for token in ids:
        digest.update(struct.pack("q", token))
        paths.append(digest.digest())
    return paths
