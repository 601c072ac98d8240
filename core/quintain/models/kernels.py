"""Whether a device has attention without masks. A CPU has none: its kernels take masks and groups
of heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .flash import FLASH, FlashKernels
from .transfers import on_gpu

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention by queries [F, H, E], keys and values [F, K, E]: F flat tokens, H query heads, K key
heads, E head size.
"""


def kernels_of(device: torch.device) -> FlashKernels | None:
    """Return the kernels for *device*; ``None`` for a CPU."""
    return FLASH if on_gpu(device) else None
