"""Attention of a GPU without masks: the contract of plugins that bring such kernels.

Without one, a GPU attends with masks. A CPU always does: its kernels take masks and groups of
heads.

Shapes: F flat tokens, H query heads, K key heads, E head size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ..registry.known import providers
from ..registry.lookup import current
from .prefix_layout import PrefixLayout

log = logging.getLogger(__name__)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention by queries, keys and values."""


class AttentionKernels(Protocol):
    """Kernels of one kind of device. The first two methods return ``None`` where there is none for
    the heads of *decoder*, a `models.layers.Decoder`, in *dtype*.
    """

    def over_layout(self, decoder: Any, dtype: torch.dtype, layout: PrefixLayout) -> Attend | None:
        """Return attention of the flat tokens of *layout*, queries [F, H, E] over keys and values
        [F, K, E], each over those that its rows have up to it; with gradients.
        """
        ...

    def steps(self, decoder: Any, store: Any, make: Any, *, graphs: bool) -> Any:
        """Return what begins steps of decoding over *store*, the cache of the embedded engine:
        ``begin(lengths)`` as `DecodingForward.steps`.

        Args:
            make: steps of rows of some lengths over a `CacheAttention`.
            graphs: replay steps as CUDA graphs.
        """
        ...

    def described(self, device: torch.device, dtype: torch.dtype, heads: Sequence[int]) -> str:
        """Return in words which kernels there are for *heads*: H, K and E."""
        ...


def on_gpu(device: torch.device) -> bool:
    """Return whether torch computes on *device* by the kernels of a GPU."""
    return device.type == "cuda"


@lru_cache
def kernels_of(device: torch.device) -> AttentionKernels | None:
    """Return the installed kernels for *device*; ``None`` for a CPU."""
    if not on_gpu(device):
        return None
    if (kernels := current().first("kernels")) is not None:
        return cast(AttentionKernels, kernels)
    known = " or ".join(providers("kernels"))
    log.warning("attention has masks, and steps no CUDA graphs: pip install %s", known)
    return None
