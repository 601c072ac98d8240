"""The kernels that ran: device time by name from torch's profiler, and the kind of attention."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ATTENTION = {
    "flash": ("flash_fwd", "flash_bwd", "flash_attention", "pytorch_flash"),
    "cudnn": ("cudnn_generated_fort_native_sdpa", "cudnn_attention"),
    "efficient": ("fmha_cutlass", "efficient_attention"),
    "flex": ("flex_attention", "triton_tem_fused"),
    "math": ("scaled_dot_product_attention_math", "softmax_warp", "cunn_softmax"),
}
"""Kind of attention to words of the names of its kernels and operations."""
CALLS = ("aten::_scaled_dot_product_", "aten::_flash_attention", "flex_attention", "flash_attn")


def kind_of(name: str) -> str | None:
    """Return the kind of attention that the kernel or operation *name* is; ``None`` for others."""
    lower = name.lower()
    return next(
        (kind for kind, words in ATTENTION.items() if any(word in lower for word in words)), None
    )


def waits(function: Callable[[], Any], device: torch.device) -> int | None:
    """Return how often *function* made the host wait for the device, as torch warns of it; ``None``
    on a CPU.
    """
    if device.type != "cuda":
        function()
        return None
    torch.cuda.synchronize(device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def profiled(function: Callable[[], Any], device: torch.device, count: int = 8) -> dict[str, Any]:
    """Run *function* once under the profiler.

    Returns:
        ``calls``: of torch's attention by operation, which says the kind of kernel; ``attention``:
        milliseconds by kind of attention; ``top``: the *count* kernels that took longest, with
        their share; ``milliseconds`` of all kernels. On a CPU these are operations instead of
        kernels.
    """
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as recorded:
        function()
        if cuda:
            torch.cuda.synchronize(device)
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in recorded.events() or ():
        on_device = str(event.device_type).endswith("CUDA")
        if not on_device and event.name.startswith(CALLS):
            calls[event.name.removeprefix("aten::")] += 1
        if on_device == cuda and not event.is_user_annotation:
            times[event.name] += (
                event.time_range.elapsed_us() if cuda else event.self_cpu_time_total
            )
    attention: Counter[str] = Counter()
    for name, microseconds in times.items():
        if (kind := kind_of(name)) is not None:
            attention[kind] += microseconds
    total = sum(times.values())
    return {
        "calls": dict(calls.most_common()),
        "attention": {kind: round(us / 1e3, 3) for kind, us in attention.most_common()},
        "milliseconds": round(total / 1e3, 3),
        "top": [
            {"kernel": name[:120], "share": round(us / total, 4)}
            for name, us in times.most_common(count)
        ]
        if total
        else [],
    }
