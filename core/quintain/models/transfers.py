"""Whether a device is a GPU, what of its memory is left, and numbers of the host on it, without
waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SPARE = 0.1
"""Share of free memory that pieces of it may leave unusable."""


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


def room_beside_peak(device: torch.device, size: int) -> bool:
    """Return whether *size* bytes, which this process holds on the GPU *device*, leave room for the
    most that it held there at one time, as if these had been no part of that.
    """
    free, _ = torch.cuda.mem_get_info(device)
    held, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    needed = torch.cuda.max_memory_allocated(device) - held + size
    return needed <= (1 - SPARE) * (free + reserved - held)
