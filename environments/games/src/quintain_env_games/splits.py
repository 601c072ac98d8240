"""Splits of generated tasks: the content of a problem alone says which one it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from random import Random
from typing import TypeVar

P = TypeVar("P")

SHARE = 10
"""One problem in this many is ``dev``, one is ``test``, the others are ``train``."""

PATIENCE = 2000
"""Draws without a new problem after which there are no more; some settings have few distinct
ones.
"""

EPOCH = 4096
"""Problems of ``train`` before one may come again."""


def split_of(key: Hashable) -> str:
    """Return the split of the problem *key*, in every process and for every seed."""
    slot = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")


def problems(
    draw: Callable[[Random], P],
    *,
    split_key: Callable[[P], Hashable] = repr,
    split: str,
    size: int,
    seed: int,
) -> Iterator[P]:
    """Yield distinct problems of *split* that *draw* gives, at most *size*; for ``train`` without
    an end, over and over.

    Args:
        split_key: what problems have in common that must not be in two splits, such as both orders
            of two piles.
    """
    rng = Random(f"{seed}/{split}")
    while True:
        seen: set[str] = set()
        misses = 0
        while misses < PATIENCE and len(seen) < (EPOCH if split == "train" else size):
            problem = draw(rng)
            name = repr(problem)
            if name in seen or split_of(split_key(problem)) != split:
                misses += 1
                continue
            seen.add(name)
            misses = 0
            yield problem
        if split != "train" or not seen:
            return
