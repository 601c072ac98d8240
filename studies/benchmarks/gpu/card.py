"""The device that figures are measured on: what it is, its clock, and what it reaches in a plain
matrix product and a plain copy.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

NOMINAL = {
    "H200": {"flops": 989e12, "bandwidth": 4.8e12},
    "H100 80GB HBM3": {"flops": 989e12, "bandwidth": 3.35e12},
    "A100-SXM4-80GB": {"flops": 312e12, "bandwidth": 2.04e12},
}
"""By the data sheets: dense bfloat16 FLOP/s, and bytes per second of the memory."""

QUERY = (
    "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,memory.used"
)


def described(device: torch.device) -> dict[str, Any]:
    """Return name, memory, versions and nominal figures of *device*, and its clock of now."""
    if device.type != "cuda":
        return {"name": str(device)}
    properties = torch.cuda.get_device_properties(device)
    nominal = next((v for key, v in NOMINAL.items() if key in properties.name), {})
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "nominal": nominal,
        "now": clock(),
    }


def clock() -> dict[str, str]:
    """Return what the driver says of the first card now; empty where it has no program for that."""
    if (program := shutil.which("nvidia-smi")) is None:
        return {}
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader", "--id=0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if ended.returncode:
        return {"error": (ended.stderr or ended.stdout).strip()[:200]}
    return dict(zip(QUERY.split(","), (x.strip() for x in ended.stdout.split(",")), strict=False))


def synchronize(device: torch.device) -> None:
    """Wait until all work of *device* is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(
    function: Callable[[], Any], device: torch.device, *, warm_up: int = 3, repeats: int = 10
) -> list[float]:
    """Return the seconds of *repeats* calls of *function* after *warm_up* that do not count."""
    times = []
    for i in range(-warm_up, repeats):
        synchronize(device)
        began = time.perf_counter()
        function()
        synchronize(device)
        if i >= 0:
            times.append(time.perf_counter() - began)
    return times


def measured(device: torch.device, *, small: bool) -> dict[str, float]:
    """Return what *device* reaches: FLOP/s of a square bfloat16 product of random numbers, and
    bytes per second of a copy (read and written) and of a sum (read alone). *small* sizes only show
    that it runs.
    """
    size, count = (256, 2**20) if small else (8192, 2**30)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = statistics.median(seconds(lambda: a @ b, device))
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    copy = statistics.median(seconds(lambda: target.copy_(source), device))
    read = statistics.median(seconds(lambda: source.sum(), device))
    return {
        "flops": 2 * size**3 / product,
        "copy": 2 * 4 * count / copy,
        "read": 4 * count / read,
    }


def reset_peak(device: torch.device) -> None:
    """Forget the highest use of memory so far."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> dict[str, int]:
    """Return the most bytes of tensors and allocator since `reset_peak`; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }
