"""What a kernel must be made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from ..layers import Decoder


@dataclass(frozen=True)
class AttentionShape:
    """Query heads H, key heads K of size E, in *dtype*."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_heads: int
    head_dim: int

    @classmethod
    def of(cls, decoder: Decoder, dtype: torch.dtype) -> Self:
        """Return what the attention of *decoder* needs in *dtype*."""
        return cls(decoder.device, dtype, decoder.heads, decoder.key_heads, decoder.head_dim)
