"""The component: what the learner and the embedded engine ask of a GPU's attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quintain.models import Decoder, PrefixLayout

from . import checks
from .caches import StaticSteps
from .runs import calls_of, flash_attend, runs_of
from .shape import AttentionShape


class FlashKernels:
    """The flash kernel of NVIDIA GPUs: implements `quintain.models.kernels.AttentionKernels`."""

    def over_layout(
        self, decoder: Decoder, dtype: torch.dtype, layout: PrefixLayout
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        shape = AttentionShape.of(decoder, dtype)
        if not checks.flash_works(shape):
            return None
        calls = calls_of(runs_of(layout), shape.device)
        return partial(flash_attend, calls=calls, scaling=shape.head_dim**-0.5)

    def steps(self, decoder: Decoder, store: Any, make: Any, *, graphs: bool) -> StaticSteps | None:
        shape = AttentionShape.of(decoder, decoder.dtype)
        if not checks.flash_reads_caches(shape):
            return None
        return StaticSteps(shape, store, make, graphs=graphs)

    def described(self, device: torch.device, dtype: torch.dtype, heads: Sequence[int]) -> str:
        shape = AttentionShape(device, dtype, *heads)
        masks = "memory-efficient with masks"
        prompts = "flash in runs" if checks.flash_works(shape) else masks
        steps = "flash" if checks.flash_reads_caches(shape) else masks
        return f"prompts: {prompts}, decoding: {steps}"


FLASH = FlashKernels()
