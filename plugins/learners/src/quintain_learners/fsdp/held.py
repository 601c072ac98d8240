"""Weights that ranks hold and the process of the run does not: it asks for some of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .setup import shared

BUCKET = 2**28
"""Bytes of weights that the run has at once, or those of the largest tensor."""
Ask = Callable[..., Any]
"""Sends a command to all ranks, and returns what the first answers."""


class RankTensors(Mapping[str, Tensor]):
    """The parameters of *module* by name, whole, each when it is asked for. Names of tied ones are
    left out but for the first. In their order, they come in buckets.

    Args:
        ask: sends a command to the ranks.
    """

    def __init__(self, module: nn.Module, ask: Ask) -> None:
        self._like = dict(module.named_parameters())
        self._names = list(self._like)
        self._ask = ask
        self._bucket: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._like:
            raise KeyError(name)
        if name not in self._bucket:
            self._bucket = {}  # before the next one is made
            names = self._from(name)
            wholes = [
                shared(torch.empty(self._like[n].shape, dtype=self._like[n].dtype)) for n in names
            ]
            self._ask("give", names, wholes)
            self._bucket = dict(zip(names, wholes, strict=True))
        return self._bucket[name]

    def _from(self, first: str) -> Sequence[str]:
        """Return the names of the bucket that begins with *first*."""
        names: list[str] = []
        size = 0
        for name in self._names[self._names.index(first) :]:
            size += self._like[name].numel() * self._like[name].element_size()
            if names and size > BUCKET:
                break
            names.append(name)
        return names


class RankWeights:
    """Live weights that the ranks hold, under their names in a checkpoint.

    Attributes:
        module: of the run, without weights; its forward is that of the ranks.
        version: of these weights.
    """

    def __init__(self, module: nn.Module, version: int, ask: Ask) -> None:
        self.module, self.version = module, version
        self._ask = ask

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors by name, which arrive when they are asked for."""
        return RankTensors(self.module, self._ask)


def computed_by(ask: Ask) -> Callable[..., Any]:
    """Return a forward for a module without weights: the ranks make it, of one sequence, in half
    precision under autocast of the CPU.
    """

    def forward(input_ids: Tensor, **_: Any) -> SimpleNamespace:
        half = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        logits = [ask("logits", ids, half) for ids in input_ids.tolist()]
        return SimpleNamespace(logits=torch.stack(logits))

    return forward
