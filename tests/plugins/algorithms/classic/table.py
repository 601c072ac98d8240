"""A policy small enough to enumerate: a softmax table over beginnings of replies, vocabulary 3, at
most 3 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PROMPT = (0, 1)
STOP = 2
REPLIES = [
    y
    for length in (1, 2, 3)
    for y in product(range(3), repeat=length)
    if STOP not in y[:-1] and (y[-1] == STOP or length == 3)
]
PREFIXES = sorted({y[:k] for y in REPLIES for k in range(len(y))})
LOGITS = np.random.default_rng(3).normal(size=(len(PREFIXES), 3))
REWARD = dict(
    zip(
        REPLIES,
        np.random.default_rng(7).choice([0.0, 0.1, 0.9, 1.0], size=len(REPLIES)),
        strict=True,
    )
)


def probabilities(prefix: tuple[int, ...]) -> Array:
    raised = np.exp(LOGITS[PREFIXES.index(prefix)])
    return np.asarray(raised / raised.sum())


def chance(reply: tuple[int, ...], given: int = 0) -> float:
    """Of the rest of *reply* after its first *given* tokens."""
    return math.prod(float(probabilities(reply[:k])[reply[k]]) for k in range(given, len(reply)))


def value(prefix: tuple[int, ...]) -> float:
    """The expected reward of a reply that begins with *prefix*."""
    n = len(prefix)
    return sum(chance(y, n) * float(REWARD[y]) for y in REPLIES if y[:n] == prefix)


def gradients(advantages: Callable[[tuple[int, ...]], Sequence[float]]) -> tuple[Array, Array]:
    """sum_y p(y) sum_t A_t grad log p(y_t), and grad E[R], both with respect to the logits.

    Args:
        advantages: of a reply, one per token.
    """
    update, truth = np.zeros_like(LOGITS), np.zeros_like(LOGITS)
    for y in REPLIES:
        for k, (token, own) in enumerate(zip(y, advantages(y), strict=True)):
            score = np.eye(3)[token] - probabilities(y[:k])
            update[PREFIXES.index(y[:k])] += chance(y) * own * score
            truth[PREFIXES.index(y[:k])] += chance(y) * float(REWARD[y]) * score
    return update, truth
