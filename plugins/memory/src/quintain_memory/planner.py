"""The planner: whether a run fits its device and the disk, and what it leaves for keys and
values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from quintain.errors import UsageError
from quintain.recipe import RunPlan

from .advice import loading_advice, updating_advice
from .disk import check_disk
from .estimate import cache_room, memory_of, memory_table


class MemoryPlanner:
    """Plans the memory of a run by `memory_of`; a `quintain.recipe.planners.Planner`."""

    def check(self, plan: RunPlan, module: Any, device: torch.device) -> list[str]:
        """Return the table of the memory of a run, with a warning if it may not fit, and a note on
        the disk.

        Raises:
            UsageError: weights, gradients, moments and copies alone take more than *device* has, or
                checkpoints more than the disk.
        """
        place, free, total = room_of(device)
        memory = memory_of(plan, module, free=free if device.type == "cuda" else None)
        lines = memory_table(plan, memory, place, free)
        fixes = ["train adapters (model.lora={})"] if memory.trained == memory.parameters else []
        fixes.append("take a smaller model")
        if (least := max(memory.fixed, memory.loading)) > total:
            needed = (
                f"without activations and KV cache that is {least / 1e9:,.1f} GB, and {place} has"
            )
            raise UsageError(
                "\n".join([*lines, f"{needed} {total / 1e9:,.1f} GB: {' or '.join(fixes)}"])
            )
        if memory.total > free:
            keys = "lower learner.token_budget, engine.args.slots, sampling.max_tokens"
            lines.append(
                f"warning: that may not fit: {', '.join([keys, *fixes[:-1]])}, or {fixes[-1]}"
            )
        if memory.host > (on_host := room_of(torch.device("cpu"))[1]):
            lines.append(f"warning: {on_host / 1e9:,.1f} GB of host memory are free")
        return [*lines, check_disk(plan, module)]

    def cache_room(self, plan: RunPlan, module: Any) -> int | None:
        """Return half of what the run leaves of the GPU of *module*; ``None`` on a CPU."""
        free = free_beside(module)
        return None if free is None else cache_room(free, memory_of(plan, module, free=free))

    def advice(
        self, phase: Literal["loading", "updating"], plan: RunPlan, slots: int
    ) -> Iterator[str]:
        """Return the keys that lower the memory of *phase*."""
        return loading_advice(plan) if phase == "loading" else updating_advice(plan, slots)


MEMORY = MemoryPlanner()


def room_of(device: torch.device) -> tuple[str, int, int]:
    """Return the name of *device*, and its free and its total bytes: of the GPU, or of the memory
    of this machine.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return torch.cuda.get_device_name(device), free, total
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(sizes[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        free, total = min(free, int(text)), min(total, int(text))
    return "this machine", free, total


def free_beside(module: Any) -> int | None:
    """Return the bytes of the GPU that are free or have *module*; ``None`` on a CPU."""
    if (device := next(module.parameters()).device).type != "cuda":
        return None
    free: int = torch.cuda.mem_get_info(device)[0]
    return free + sum(int(p.nbytes) for p in module.parameters())
