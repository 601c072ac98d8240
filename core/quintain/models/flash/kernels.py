"""What the learner and the embedded engine ask of a GPU's attention.

Shapes: F flat tokens, H query heads, K key heads, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..layers import Decoder
from ..prefix_layout import PrefixLayout
from . import checks
from .caches import StaticSteps
from .runs import calls_of, flash_attend, runs_of
from .shape import AttentionShape


class FlashKernels:
    """The flash kernel of NVIDIA GPUs. `over_layout` and `steps` return ``None`` where it does not
    work for the heads of a decoder in a type, so that the caller attends with masks.
    """

    def over_layout(
        self, decoder: Decoder, dtype: torch.dtype, layout: PrefixLayout
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Return attention of the flat tokens of *layout*, queries [F, H, E] over keys and values
        [F, K, E], each over those that its rows have up to it; with gradients.
        """
        shape = AttentionShape.of(decoder, dtype)
        if not checks.flash_works(shape):
            return None
        calls = calls_of(runs_of(layout), shape.device)
        return partial(flash_attend, calls=calls, scaling=shape.head_dim**-0.5)

    def steps(self, decoder: Decoder, store: Any, make: Any, *, graphs: bool) -> StaticSteps | None:
        """Return what begins steps of decoding over *store*, the cache of the embedded engine:
        ``begin(lengths)`` as `DecodingForward.steps`.

        Args:
            make: steps of rows of some lengths over a `CacheAttention`.
            graphs: replay steps as CUDA graphs.
        """
        shape = AttentionShape.of(decoder, decoder.dtype)
        if not checks.flash_reads_caches(shape):
            return None
        return StaticSteps(shape, store, make, graphs=graphs)

    def described(self, device: torch.device, dtype: torch.dtype, heads: Sequence[int]) -> str:
        """Return in words which kernels there are for *heads*: H, K and E."""
        shape = AttentionShape(device, dtype, *heads)
        masks = "memory-efficient with masks"
        prompts = "flash in runs" if checks.flash_works(shape) else masks
        steps = "flash" if checks.flash_reads_caches(shape) else masks
        return f"prompts: {prompts}, decoding: {steps}"


FLASH = FlashKernels()
