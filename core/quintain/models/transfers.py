"""Whether a device is a GPU, and numbers of the host on it, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_gpu(device: torch.device) -> bool:
    """Return whether torch computes on *device* by the kernels of a GPU."""
    return device.type == "cuda"


def to_device(
    values: Sequence[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = torch.long
) -> Tensor:
    """Return *values* as a tensor on *device*.

    Made there directly, it would make the host wait until the device has done all earlier work. A
    plain copy of host memory is read before this returns, so *values* may change afterwards.
    """
    there = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    return there.to(device, non_blocking=True)
