"""What ranks exchange: sums over all of them, by torch's collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from quintain.learning import Ranks

T = TypeVar("T")
BUCKET = 2**23
"""Numbers that one collective adds up."""


class ProcessRanks(Ranks):
    """The ranks of torch's process group.

    Args:
        sharded: whether weights are, so that gradients are summed in the backward pass and ranks go
            in lockstep.
        device: what this rank computes on.
        half: type in which it gathers the weights of layers, if not in their own.
        root: what is outside of the layers, which stays gathered for all parts of a minibatch; its
            gradient is added up over ranks once.
    """

    def __init__(
        self,
        *,
        sharded: bool,
        device: str = "cpu",
        half: torch.dtype | None = None,
        root: FSDPModule | None = None,
    ) -> None:
        self._root, self._unsent = root, False
        self.device, self.half = torch.device(device), half
        self.rank, self.count, self.lockstep = dist.get_rank(), dist.get_world_size(), sharded

    def share(self, costs: Sequence[int]) -> list[list[int]]:
        """Give *costs*, the largest first, each to the rank that has the least so far."""
        shares: list[list[int]] = [[] for _ in range(self.count)]
        loads = [0] * self.count
        for index in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
            least = min(range(self.count), key=loads.__getitem__)
            shares[least].append(index)
            loads[least] += costs[index]
        return shares

    def in_turn(self, parts: Sequence[T]) -> Iterator[T]:
        root = self._root
        if root is None:
            yield from parts
            return
        if self._unsent:  # an update that failed has left what it had added up
            root.unshard()
            for parameter in root.parameters():  # type: ignore[attr-defined]
                parameter.grad = None
            root.reshard()
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            self._unsent = not last
            root.set_requires_gradient_sync(last, recurse=False)
            root.set_reshard_after_backward(last, recurse=False)
            yield part

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.lockstep:  # the backward pass has done so
            return
        bucket: list[Tensor] = []
        for index, parameter in enumerate(parameters):
            assert parameter.grad is not None
            bucket.append(parameter.grad)
            if sum(g.numel() for g in bucket) >= BUCKET or index == len(parameters) - 1:
                flat = torch.cat([g.reshape(-1) for g in bucket])
                dist.all_reduce(flat)
                parts = torch.split_with_sizes(flat, [g.numel() for g in bucket])
                for gradient, total in zip(bucket, parts, strict=True):
                    gradient.copy_(total.view_as(gradient))
                bucket = []

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
