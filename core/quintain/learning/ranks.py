"""The processes that share a learner's work, called ranks: one alone, unless a plugin has more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Ranks:
    """One process that trains alone. A subclass connects several: each takes a part of every
    minibatch, and what they add up is the same on all.

    All ranks make the same calls in the same order. The loss is a weighted sum whose weights are
    fixed before it is cut, so a sum over ranks is all that they exchange.

    Attributes:
        rank: the number of this process, from 0.
        count: how many there are.
        lockstep: a forward or backward pass needs all ranks, so that each makes as many.
        device: what this process computes on, if it is not where the weights lie.
        half: type in which it gathers the weights of layers, if not in their own.
    """

    device: torch.device | None = None
    half: torch.dtype | None = None
    rank = 0
    count = 1
    lockstep = False

    def in_turn(self, parts: Sequence[T]) -> Iterable[T]:
        """Yield the *parts* of a minibatch, each of which is followed by a backward pass."""
        return parts

    def share(self, costs: Sequence[int]) -> list[list[int]]:
        """Return the indices of *costs* that each rank takes, by rank; all ranks return the same."""
        return [list(range(len(costs)))]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of *tensor* over all ranks."""
        return tensor

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace the gradient of each parameter by its sum over all ranks, where the backward pass
        has not done so.
        """

    def gather(self, value: T) -> list[T]:
        """Return *value* of each rank, by rank."""
        return [value]

    def whole(self, tensor: Tensor) -> Tensor:
        """Return all of a *tensor* of which each rank may have a part."""
        return tensor


ALONE = Ranks()
