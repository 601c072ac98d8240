"""Policies as tables of log-probs, and samples as paths through them; NumPy alone, no code of the
package.

One row of a table per context, all prompts together: [places, vocabulary].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """All replies over a small vocabulary that end with its last token or at *longest* tokens."""

    vocab: int = 3
    longest: int = 3

    @property
    def replies(self) -> list[tuple[int, ...]]:
        stop = self.vocab - 1
        out: list[tuple[int, ...]] = []
        for length in range(1, self.longest + 1):
            every = itertools.product(range(self.vocab), repeat=length)
            out += [
                y for y in every if stop not in y[:-1] and (y[-1] == stop or length == self.longest)
            ]
        return out

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        """Beginnings of replies after which a token is sampled."""
        return sorted({y[:k] for y in self.replies for k in range(len(y))})

    def path(self, reply: tuple[int, ...], task: int = 0) -> tuple[int, ...]:
        """Rows of the table that a reply to the prompt number *task* goes through."""
        contexts = self.contexts
        return tuple(task * len(contexts) + contexts.index(reply[:k]) for k in range(len(reply)))


def multisets(probs: Sequence[float], size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Groups of *size* independent draws up to order, with their probabilities (they sum to 1)."""
    for chosen in itertools.combinations_with_replacement(range(len(probs)), size):
        ways = math.factorial(size)
        for i in set(chosen):
            ways //= math.factorial(chosen.count(i))
        yield chosen, ways * math.prod(probs[i] for i in chosen)


def log_softmax(logits: Array) -> Array:
    peak = logits.max(-1, keepdims=True)
    return np.asarray(logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True)))


@dataclass(frozen=True, kw_only=True)
class Path:
    """One sample: its rows of the table, its tokens, what it earned."""

    at: tuple[int, ...]
    ids: tuple[int, ...]
    outcome: float
    shaping: float = 0.0
    group: int = 0
    environment: str = ""
    truncated: bool = False
    turns: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Log-probs under the four policies, [places, vocabulary]."""

    theta: Array
    prox: Array
    mu: Array
    ref: Array

    @classmethod
    def of(cls, **logits: Array) -> Policies:
        return cls(**{name: log_softmax(table) for name, table in logits.items()})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A batch as formulas see it: log-probs of the sampled tokens under each policy, per sample.

    With *prune*, theta, prox and ref are the policies over the tokens of at least that share of
    prox's likeliest one's probability, and the sampled one.
    """

    paths: Sequence[Path]
    policies: Policies
    longest: int
    prune: float = 0.0

    def safe(self, i: int) -> NDArray[np.bool_]:
        """[tokens, vocabulary]."""
        path, prox = self.paths[i], np.exp(self.policies.prox)
        rows = prox[list(path.at)]
        kept = rows >= self.prune * rows.max(1, keepdims=True)
        kept[np.arange(len(path)), list(path.ids)] = True
        return np.asarray(kept)

    def table(self, policy: str, i: int) -> Array:
        """Log-probs of all tokens in each context of sample *i*, [tokens, vocabulary]."""
        rows = np.asarray(getattr(self.policies, policy)[list(self.paths[i].at)])
        return (
            rows
            if policy == "mu" or not self.prune
            else log_softmax(np.where(self.safe(i), rows, -np.inf))
        )

    def logp(self, policy: str, i: int) -> Array:
        return np.asarray(
            self.table(policy, i)[np.arange(len(self.paths[i])), list(self.paths[i].ids)]
        )

    @property
    def count(self) -> int:
        return len(self.paths)

    @property
    def groups(self) -> list[list[int]]:
        """Samples of each group."""
        numbers = sorted({path.group for path in self.paths})
        return [
            [i for i, path in enumerate(self.paths) if path.group == number] for number in numbers
        ]
