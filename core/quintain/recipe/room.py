"""Whether a run fits its device and the disk, and what it leaves for keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from ..errors import RunError, UsageError
from ..models.forward import TOKEN_BUDGET
from ..store.storage import free_bytes, size_text
from .memory import cache_room, memory_of, memory_table
from .plan import RunPlan

MOST_OF_ENGINE = 0.9
"""Share of a GPU that an engine with memory of its own takes at most."""
SPARE = 0.05
"""Share of free memory that neither learner nor engine is given: contexts of CUDA, and pieces."""
LEAST_CACHE = 0.8
"""Largest share of an engine's memory for its weights, so that keys and values have room."""
Phase = Literal["loading", "updating"]
"""What a run does when its memory ends; the engine itself says it of sampling."""


def check_plan(plan: RunPlan, module: Any, device: torch.device) -> list[str]:
    """Return what ``--dry-run`` says of the room that a run takes which trains *module*, without
    weights yet, on *device*: the table of its memory, with a warning if it may not fit, and a note
    on the disk. ``train`` itself shows the lines that begin with ``warning:``.

    Raises:
        UsageError: weights, gradients, moments and copies alone take more than *device* has, or
            checkpoints more than the disk.
    """
    place, free, total = room_of(device)
    memory = memory_of(plan, module, free=free if device.type == "cuda" else None)
    lines = memory_table(plan, memory, place, free)
    lines += engine_share(plan, module, device)[1]
    fixes = ["train adapters (model.lora={})"] if memory.trained == memory.parameters else []
    fixes.append("take a smaller model")
    if (least := max(memory.fixed, memory.loading)) > total:
        needed = f"without activations and KV cache that is {least / 1e9:,.1f} GB, and {place} has"
        raise UsageError(
            "\n".join([*lines, f"{needed} {total / 1e9:,.1f} GB: {' or '.join(fixes)}"])
        )
    if memory.total - memory.program > free:  # this process has its program already
        keys = "lower learner.token_budget, engine.args.slots, sampling.max_tokens"
        lines.append(f"warning: that may not fit: {', '.join([keys, *fixes[:-1]])}, or {fixes[-1]}")
    if memory.host > (on_host := room_of(torch.device("cpu"))[1]):
        lines.append(f"warning: {on_host / 1e9:,.1f} GB of host memory are free")
    return [*lines, check_disk(plan, module)]


def engine_share(
    plan: RunPlan, module: Any, device: torch.device
) -> tuple[float | None, list[str]]:
    """Return the share of the GPU *device* that the learner of *module* leaves to an engine with
    memory of its own on it, and the lines of it in the table; ``None`` where there is none, or where
    the recipe says how much that takes.

    The class of such an engine has ``shares_gpu(args)``: whether it takes a share ``always``, ``in
    turns`` with the learner, of which nothing computes then, or none (empty). It gets the argument
    ``gpu_share``.
    """
    ask = getattr(plan.engine.kind, "shares_gpu", None)
    taken = ask(plan.engine.args) if ask and device.type == "cuda" and not plan.cluster else ""
    if not taken:
        return None, []
    _, free, total = room_of(device)
    free += torch.cuda.memory_reserved(device)  # of this process, which the plan counts
    memory = memory_of(plan, module, free=free)
    in_turns = taken == "in turns" and not plan.schedule.overlaps
    left = (1 - SPARE) * free - memory.fixed - (0 if in_turns else memory.activations)
    share = math.floor(100 * min(MOST_OF_ENGINE, max(0.0, left / total))) / 100
    turns = " while it rests" if in_turns else ""
    size = share * total / 1e9
    lines = [
        f"  {'engine':<12}{size:>8,.2f} GB  {share:g} of the GPU: what the learner leaves{turns}"
    ]
    dtype = getattr(torch, plan.engine_dtype, torch.float32)
    if (weights := dtype.itemsize * memory.parameters) > LEAST_CACHE * share * total:
        fixes = "lower learner.token_budget, train adapters or take a smaller model"
        lines.append(
            f"warning: the engine's own weights take {weights / 1e9:,.1f} GB of them: "
            f"{'' if in_turns or plan.schedule.overlaps else 'set engine.args.sleep_mode=true, '}"
            f"{fixes}"
        )
    return share, lines


def slots_of(plan: RunPlan, module: Any) -> int:
    """Return how many sequences the engine decodes at once beside the learner of *module*: as many
    as half of what the run leaves of its GPU has room for.
    """
    return plan.engine_slots(module, room=room_for_cache(plan, module))


def room_for_cache(plan: RunPlan, module: Any) -> int | None:
    """Return the bytes that keys and values may take on the GPU that *module* was loaded to;
    ``None`` on a CPU.
    """
    free = free_beside(module)
    return None if free is None else cache_room(free, memory_of(plan, module, free=free))


@contextmanager
def memory_advice(phase: Phase, plan: RunPlan, slots: int = 0) -> Iterator[None]:
    """Say in a `RunError` which keys lower the memory of *phase* where the GPU is out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        advice = loading_advice(plan) if phase == "loading" else updating_advice(plan, slots)
        fixes = "; or ".join(filter(None, ("; ".join(advice), "take a smaller model")))
        reason = str(e).partition(". ")[0]
        raise RunError(f"the GPU is out of memory while {phase}: {fixes} ({reason})") from e


def loading_advice(plan: RunPlan) -> Iterator[str]:
    """Yield what lowers the memory of the model that is loaded."""
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"
        if plan.algorithm.uses_reference:
            yield (
                f"take an algorithm without a reference model (now {plan.algorithm_label}), such "
                f"as dr_grpo"
            )
    elif plan.model.dtype in ("float32", "float64"):
        yield f"set model.dtype=bfloat16 (now {plan.model.dtype})"


def updating_advice(plan: RunPlan, slots: int) -> Iterator[str]:
    """Yield what lowers the memory of an update, beside an engine with *slots*."""
    yield f"lower learner.token_budget (now {plan.learner.token_budget or TOKEN_BUDGET})"
    if not plan.learner.checkpoints_activations:
        yield "set learner.checkpoint_activations=true"
    if plan.learner.precision == "float32":
        yield "set learner.precision=bf16 (now float32)"
    yield f"lower sampling.max_tokens (now {plan.rollouts.max_tokens})"
    if slots:
        yield f"lower engine.args.slots (now {slots}), whose KV cache stays"
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"


def check_disk(plan: RunPlan, module: Any) -> str:
    """Return a note on the room that checkpoints of *module* take, besides that of one that is
    written.

    Raises:
        UsageError: there is less.
    """
    weights = 4 * sum(p.numel() for p in module.parameters() if p.requires_grad)
    saving = plan.saving
    size = 3 * weights  # the weights and the two moments of AdamW
    saved = math.ceil(plan.stop.steps / (saving.every or plan.stop.steps))
    needed = min(saving.keep + 1, saved) * size + saving.best * weights
    free = free_bytes(saving.folder)
    note = (
        f"checkpoints take up to {size_text(needed)}; {size_text(free)} are free in {saving.folder}"
    )
    if needed > free:
        raise UsageError(
            f"{note}: make room, or set run.folder, checkpoint.keep=1 or checkpoint.best=false"
        )
    return note


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
