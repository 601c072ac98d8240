"""The memory of a run by part, from the configuration of its model alone; docs/hardware.md explains
the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ..errors import RunError, UsageError
from ..interfaces.shared_module import SuggestsSlots, shares_module
from ..models.forward import TOKEN_BUDGET
from ..models.head import CHUNK_ELEMENTS
from ..models.hf import config_folder
from ..models.layers import Decoder, cache_shape
from ..models.load import DTYPES, cache_bytes
from ..models.lora import base_of, with_adapters
from .plan import RunPlan

PROMPT = 512
"""Assumed tokens of a prompt."""
_NAMES = {2: "bfloat16", 4: "float32", 8: "float64"}
AUTOCAST_SHARE = 0.72
"""Bytes that autocast keeps for the backward pass, as a share of those in float32; measured, see
docs/hardware.md.
"""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes that a run takes, by part.

    Attributes:
        parameters, trained: their numbers.
        weights, gradients, moments, reference, copy: exact; *copy* is the engine's.
        slots: sequences that the engine decodes at once; 0 for an engine with memory of its own.
        samples: rollouts of a step.
        cache: keys and values of all slots.
        activations: estimated, with what autocast and the logits take.
        host: of the host, beside a GPU; on a CPU it is part of the moments.
    """

    parameters: int
    trained: int
    weights: int
    gradients: int
    moments: int
    reference: int
    copy: int
    activations: int
    samples: int
    slots: int = 0
    cache: int = 0
    host: int = 0

    @property
    def fixed(self) -> int:
        """What the run takes whatever it samples."""
        return self.weights + self.gradients + self.moments + self.reference + self.copy

    @property
    def total(self) -> int:
        """All parts at once: keys and values stay while the learner updates."""
        return self.fixed + self.cache + self.activations

    @property
    def waves(self) -> int:
        """How often the slots are filled in a step, if all samples are equally long."""
        return -(-self.samples // self.slots) if self.slots else 1


def tokens_of(plan: RunPlan) -> int:
    """Return the tokens of a sequence that are expected at most."""
    return 2 * plan.max_tokens + PROMPT


def module_on_paper(name: str, lora: Mapping[str, Any] | None) -> Any:
    """Return the module of model *name* with its adapters, without weights; ``None`` if its
    configuration cannot be had.

    Raises:
        UsageError: the settings of the adapters are refused.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        if not (folder := config_folder(name)):
            return None
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(folder, local_files_only=True)
            )
            return with_adapters(module, lora) if lora is not None else module
    except UsageError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError):
        return None  # whoever loads it says what is wrong


def memory_of(plan: RunPlan, module: Any, *, free: int | None) -> MemoryPlan:
    """Return the memory of a run that trains *module*, which needs no weights, on a GPU with *free*
    bytes, or on a CPU.
    """
    numbers = [(p.numel(), p.requires_grad) for p in module.parameters()]
    parameters, trained = sum(n for n, _ in numbers), sum(n for n, trains in numbers if trains)
    needed = plan.learner_bytes
    lora = trained < parameters
    kind, own = plan.engine, _NAMES[needed.weights]
    dtype = str(plan.engine_args.get("dtype", plan.model.dtype))
    dtype = own if dtype == "auto" else dtype
    size = DTYPES.get(dtype, torch.float32).itemsize
    merges = lora and plan.engine_args.get("merge", True)
    copies = merges or dtype != own or plan.copies_weights
    in_process = shares_module(kind) and isinstance(
        kind, SuggestsSlots
    )  # others have memory of their own
    memory = MemoryPlan(
        parameters=parameters,
        trained=trained,
        # adapters are float32 at least
        weights=int((needed.weights + needed.own) * parameters)
        + (max(0, 4 - needed.weights) * trained if lora else 0),
        gradients=int(needed.gradients * trained),
        moments=int((needed.moments + (needed.host if free is None else 0)) * trained),
        host=0 if free is None else needed.host * trained,
        reference=int((needed.own or needed.weights) * parameters)
        if plan.algorithm.uses_reference and not lora
        else 0,
        copy=size * parameters if in_process and copies else 0,
        activations=activations(plan, module)
        + update_bytes(plan, module, parameters, adapters=lora)
        + logits_bytes(plan, module, "cpu" if free is None else "gpu"),
        samples=plan.groups * plan.group_size,
    )
    if not in_process:
        return memory
    tokens, slots = tokens_of(plan), plan.engine_args.get("slots")
    if slots is None:
        room = None if free is None else max(0, free - memory.fixed) // 2
        slots = kind.slots_for(
            module, samples=memory.samples, tokens=tokens, dtype=dtype, room=room
        )
    cache = min(slots, memory.samples) * cache_bytes(module, tokens, dtype)
    return replace(memory, slots=slots, cache=cache)


def activations(plan: RunPlan, module: Any) -> int:
    """Return the estimated bytes that the layers keep for the backward pass of a micro-batch.

    A layer keeps 3.5 D + 3 I + 3.5 H E + 4 K E numbers of a token (D hidden size, I intermediate
    size, H heads and K key heads of size E), or D with checkpointing, and all that of one layer;
    the head keeps 2 D.
    """
    config = base_of(module).config.get_text_config()
    layers, key_heads, size = cache_shape(config)
    hidden, heads = config.hidden_size, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    inner = max(inner) if isinstance(inner, list) else inner  # one for each layer
    layer = (
        4
        * (3.5 * hidden + 3 * inner + 3.5 * heads * size + 4 * key_heads * size)
        * (AUTOCAST_SHARE if plan.learner.precision != "float32" else 1)
    )
    checkpointing = plan.learner.checkpoint_activations
    kept = 4 * hidden * 2 + (4 * hidden * layers + layer if checkpointing else layer * layers)
    return int(micro_batch_of(plan) * kept)


def update_bytes(plan: RunPlan, module: Any, parameters: int, *, adapters: bool) -> int:
    """Return the estimated bytes that an update takes whatever its tokens: weights of the layers
    that autocast turns to half precision, and the output layer's gradient.
    """
    config = base_of(module).config.get_text_config()
    words: int = config.hidden_size * config.vocab_size
    half = plan.learner.precision != "float32"
    casts = half and plan.learner_bytes.weights > 2
    # Its gradient in float32, and in half precision what one chunk adds.
    head = words * ((2 if casts else 0) + (0 if adapters else 6 if half else 4))
    layers = 2 * (parameters - words) if casts else 0
    if not plan.learner.checkpoint_activations:
        return layers + head
    # Autocast drops them before the backward pass. It keeps none that are frozen, or that `Decoder`
    # joins: two thirds.
    return max(head, 0 if adapters else layers // (3 if Decoder.of(module) else 1))


def logits_bytes(plan: RunPlan, module: Any, place: Literal["cpu", "gpu"]) -> int:
    """Return the estimated bytes of a chunk of logits: in float32, their exponentials and their
    gradient.
    """
    vocabulary: int = base_of(module).config.get_text_config().vocab_size
    return 3 * 4 * min(CHUNK_ELEMENTS[place], micro_batch_of(plan) * vocabulary)


def micro_batch_of(plan: RunPlan) -> int:
    """Return the tokens of a micro-batch at most: it has one sequence or more."""
    return max(plan.learner.token_budget or TOKEN_BUDGET, tokens_of(plan))


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
    return free + sum(int(p.numel() * p.element_size()) for p in module.parameters())


def memory_table(plan: RunPlan, memory: MemoryPlan, place: str, free: int) -> list[str]:
    """Return the lines of *memory* against the *free* bytes of *place*."""
    samples = (
        f"{memory.samples:,} samples in {memory.waves:,} waves"
        if memory.waves > 1
        else "all samples at once"
    )
    checkpointing = ", checkpointed" if plan.learner.checkpoint_activations else ""
    rows = [
        ("weights", memory.weights, _NAMES[plan.learner_bytes.weights]),
        ("gradients", memory.gradients, f"of {memory.trained / 1e6:,.1f}M parameters"),
        ("moments", memory.moments, "of AdamW"),
        ("reference", memory.reference, f"of {plan.algorithm_label}"),
        ("engine copy", memory.copy, plan.model.dtype),
        (
            "KV cache",
            memory.cache,
            f"{memory.slots} slots of {tokens_of(plan):,} tokens: {samples}",
        ),
        (
            "activations",
            memory.activations,
            f"estimated, {micro_batch_of(plan):,} tokens{checkpointing}",
        ),
        ("together", memory.total, f"{free / 1e9:,.1f} GB are free on {place}"),
        ("host memory", memory.host, "of AdamW"),
    ]
    lines = [f"  {name:<12}{size / 1e9:>8,.2f} GB  {detail}" for name, size, detail in rows if size]
    return [
        f"memory of {memory.parameters / 1e6:,.1f}M parameters (docs/hardware.md has the formula):",
        *lines,
    ]


@contextmanager
def memory_advice(
    phase: Literal["loading", "updating"], plan: RunPlan, slots: int = 0
) -> Iterator[None]:
    """Say in a `RunError` which keys lower the memory of *phase*, with their values; *slots* are
    the engine's.

    The engine says it of sampling.
    """
    try:
        yield
    except torch.OutOfMemoryError as e:
        advice = "; ".join(
            _loading_advice(plan) if phase == "loading" else _updating_advice(plan, slots)
        )
        reason = str(e).partition(". ")[0]
        raise RunError(
            f"the GPU is out of memory while {phase}: {advice}; or take a smaller model ({reason})"
        ) from e


def _loading_advice(plan: RunPlan) -> Iterator[str]:
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"
        if plan.algorithm.uses_reference:
            yield (
                f"take an algorithm without a reference model (now {plan.algorithm_label}), such "
                f"as dr_grpo"
            )
    elif plan.model.dtype in ("float32", "float64"):
        yield f"set model.dtype=bfloat16 (now {plan.model.dtype})"


def _updating_advice(plan: RunPlan, slots: int) -> Iterator[str]:
    yield f"lower learner.token_budget (now {plan.learner.token_budget or TOKEN_BUDGET})"
    if not plan.learner.checkpoint_activations:
        yield "set learner.checkpoint_activations=true"
    if plan.learner.precision == "float32":
        yield "set learner.precision=bf16 (now float32)"
    yield f"lower sampling.max_tokens (now {plan.max_tokens})"
    if slots:
        yield f"lower engine.args.slots (now {slots}), whose KV cache stays"
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"


def check_memory(plan: RunPlan, module: Any, device: torch.device) -> list[str]:
    """Return the table of the memory of a run, with a warning if it may not fit.

    Raises:
        UsageError: weights, gradients, moments and copies alone take more than *device* has.
    """
    place, free, total = room_of(device)
    memory = memory_of(plan, module, free=free if device.type == "cuda" else None)
    lines = memory_table(plan, memory, place, free)
    fixes = ["train adapters (model.lora={})"] if memory.trained == memory.parameters else []
    fixes.append("take a smaller model")
    if memory.fixed > total:
        needed = (
            f"without activations and KV cache that is {memory.fixed / 1e9:,.1f} GB, and {place} "
            f"has"
        )
        raise UsageError(
            "\n".join([*lines, f"{needed} {total / 1e9:,.1f} GB: {' or '.join(fixes)}"])
        )
    if memory.total > free:
        keys = "lower learner.token_budget, engine.args.slots, sampling.max_tokens"
        lines.append(f"warning: that may not fit: {', '.join([keys, *fixes[:-1]])}, or {fixes[-1]}")
    if memory.host > (on_host := room_of(torch.device("cpu"))[1]):
        lines.append(f"warning: {on_host / 1e9:,.1f} GB of host memory are free")
    return lines
