"""Splits of a procedural environment: which one a problem belongs to depends on its content
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from random import Random
from typing import TypeVar

P = TypeVar("P")

SHARE = 10
"""One problem in this many is ``dev``, one is ``test``, the others are ``train``."""

PATIENCE = 200
"""Draws for each task of a finite split before it counts as exhausted (a level may have few
distinct problems).
"""


def split_of(key: Hashable) -> str:
    """Return the split that owns the problem *key*, in every process, for every seed: splits are
    disjoint by content.
    """
    slot = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")


def problems(
    draw: Callable[[Random], P], key: Callable[[P], Hashable], *, split: str, size: int, seed: int
) -> Iterator[P]:
    """Yield problems of *split*, drawn by *draw*: endless for ``train``, else at most *size*
    distinct ones.

    Args:
        key: what a problem is, whatever its presentation: problems with one key are the same one.
    """
    rng = Random(f"{seed}/{split}")
    if split == "train":
        while True:
            problem = draw(rng)
            if split_of(key(problem)) == "train":
                yield problem
    seen: set[Hashable] = set()
    for _ in range(size * PATIENCE):
        if len(seen) == size:
            return
        problem = draw(rng)
        if split_of(key(problem)) == split and key(problem) not in seen:
            seen.add(key(problem))
            yield problem
