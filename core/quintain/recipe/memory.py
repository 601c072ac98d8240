"""The memory of a run by part, from the configuration of its model alone; docs/hardware.md explains
the formula.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..interfaces.learner import LearnerKind
from ..models.adapters import base_of
from ..models.forward import TOKEN_BUDGET
from ..models.head import CHUNK_ELEMENTS
from ..models.layers import Decoder, cache_shape
from ..models.load import cache_bytes
from ..models.packed import packs
from .plan import RunPlan

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
        loading: weights while the model is loaded.
        slots: sequences that the engine decodes at once; 0 for an engine with memory of its own.
        samples: rollouts of a step.
        cache: keys and values of all slots.
        activations: estimated, with what autocast and the logits take.
        host: of the host, beside a GPU; on a CPU it is part of the moments.
        processes: of the learner, beside that of the run; 0 where there are none.
        each: what one of them takes, which the parts above have for all of the device.
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
    processes: int = 0
    each: int = 0
    loading: int = 0

    @property
    def fixed(self) -> int:
        """What the run takes whatever it samples."""
        return self.weights + self.gradients + self.moments + self.reference + self.copy

    @property
    def total(self) -> int:
        """All parts at once: keys and values stay while the learner updates."""
        return max(self.loading, self.fixed + self.cache + self.activations)

    @property
    def waves(self) -> int:
        """How often the slots are filled in a step, if all samples are equally long."""
        return -(-self.samples // self.slots) if self.slots else 1


def memory_of(plan: RunPlan, module: Any, *, free: int | None) -> MemoryPlan:
    """Return the memory of a run that trains *module*, which needs no weights, on a GPU with *free*
    bytes, or on a CPU.
    """
    numbers = [(p.numel(), p.requires_grad) for p in module.parameters()]
    parameters, trained = sum(n for n, _ in numbers), sum(n for n, trains in numbers if trains)
    needed = plan.learner.bytes
    lora = trained < parameters
    dtype = plan.engine_dtype
    size = getattr(torch, dtype, torch.float32).itemsize
    merges = lora and plan.engine.args.get("merge", True)
    copies = merges or dtype != plan.learner.dtype or plan.copies_weights or plan.engine_elsewhere
    # On a CPU the engine keeps weights in the layout of its products, too.
    packed = (
        free is None
        and Decoder.of(module) is not None
        and packs("cpu", getattr(torch, dtype, torch.float32), size * parameters)
    )
    # adapters are float32 at least
    of_module = needed.weights * parameters
    of_module += max(0, 4 - needed.weights) * trained if lora else 0
    on_device = needed.module == "device" or (needed.module == "host" and free is None)
    loading = int(needed.own * parameters) + of_module * on_device
    saved = 0 if needed.base is None else needed.weights - needed.base
    memory = MemoryPlan(
        parameters=parameters,
        trained=trained,
        loading=loading,
        weights=loading - int(saved * weights_under_adapters(module)),
        gradients=int(needed.gradients * trained),
        moments=int((needed.moments + (needed.host if free is None else 0)) * trained),
        host=0
        if free is None
        else int(needed.host * trained) + of_module * (needed.module == "host"),
        reference=int((needed.own or needed.weights) * parameters)
        if plan.algorithm.uses_reference and not lora
        else 0,
        copy=size * parameters * (copies + packed) if plan.engine.beside_learner else 0,
        activations=needed.processes
        * (
            activations(plan, module)
            + update_bytes(plan, module, parameters, adapters=lora)
            + logits_bytes(plan, module, "cpu" if free is None else "gpu")
        ),
        samples=plan.rollouts.samples,
    )
    if needed.own or needed.processes > 1:
        of_all_processes = memory.gradients + memory.moments + memory.reference + memory.activations
        each = int(needed.own * parameters + of_all_processes) // needed.processes
        memory = replace(memory, processes=needed.processes, each=each)
    if not plan.engine.beside_learner:
        return memory
    room = None if free is None else cache_room(free, memory)
    slots = plan.engine_slots(module, room=room)
    cache = min(slots, memory.samples) * cache_bytes(module, plan.rollouts.sequence_tokens, dtype)
    return replace(memory, slots=slots, cache=cache)


def memory_on(plan: RunPlan, module: Any, *, devices: int, free: int) -> MemoryPlan:
    """Return the memory of a run whose learner has a number of GPUs with *free* bytes each, if it can
    take several; else that of `memory_of`.
    """
    learner = plan.learner
    if hasattr(learner.kind, "on_gpus"):
        kind = learner.kind.on_gpus(devices)
        size = kind.bytes_per_parameter(adapters=plan.model.lora is not None)
        plan = replace(plan, learner=replace(learner, kind=kind, bytes=size))
    return memory_of(plan, module, free=free)


def weights_under_adapters(module: Any) -> int:
    """Return the numbers in the linear maps of *module* that adapters change."""
    bases = (getattr(part, "base_layer", None) for part in module.modules())
    return sum(base.weight.numel() for base in bases if isinstance(base, torch.nn.Linear))


def cache_room(free: int, memory: MemoryPlan) -> int:
    """Return the bytes for keys and values on a GPU with *free* bytes before the run of *memory*:
    half of what it leaves, since activations are an estimate.
    """
    return max(0, free - memory.fixed) // 2


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
    checkpointing = plan.learner.checkpoints_activations
    kept = 4 * hidden * 2 + (4 * hidden * layers + layer if checkpointing else layer * layers)
    return int(micro_batch_of(plan) * kept)


def update_bytes(plan: RunPlan, module: Any, parameters: int, *, adapters: bool) -> int:
    """Return the estimated bytes that an update takes whatever its tokens: weights of the layers
    that autocast turns to half precision, and the output layer's gradient.
    """
    kind, precision = plan.learner.kind, plan.learner.precision
    if isinstance(kind, LearnerKind):
        taken = kind.update_bytes(module, precision=precision)
        if taken is not None:
            return taken
    config = base_of(module).config.get_text_config()
    words: int = config.hidden_size * config.vocab_size
    half = plan.learner.precision != "float32"
    casts = half and plan.learner.bytes.weights > 2
    # Its gradient in float32, and in half precision what one chunk adds.
    head = words * ((2 if casts else 0) + (0 if adapters else 6 if half else 4))
    layers = 2 * (parameters - words) if casts else 0
    # Of those that `Decoder` joins, two thirds, no copy is kept.
    layers //= 3 if Decoder.of(module) else 1
    if not plan.learner.checkpoints_activations:
        return layers + head
    # Autocast drops them before the backward pass. It keeps none that are frozen.
    return max(head, 0 if adapters else layers)


def logits_bytes(plan: RunPlan, module: Any, place: Literal["cpu", "gpu"]) -> int:
    """Return the estimated bytes of a chunk of logits: in float32, their exponentials and their
    gradient. On a CPU the gradient takes the place of the logits, and exponentials are of a few
    rows at a time; in half precision there are the products, too.
    """
    vocabulary: int = base_of(module).config.get_text_config().vocab_size
    number = 12 if place == "gpu" else 4 if plan.learner.precision == "float32" else 6
    return number * min(CHUNK_ELEMENTS[place], micro_batch_of(plan) * vocabulary)


def micro_batch_of(plan: RunPlan) -> int:
    """Return the tokens of a micro-batch at most: it has one sequence or more."""
    return max(plan.learner.token_budget or TOKEN_BUDGET, plan.rollouts.sequence_tokens)


def memory_table(plan: RunPlan, memory: MemoryPlan, place: str, free: int) -> list[str]:
    """Return the lines of *memory* against the *free* bytes of *place*."""
    samples = (
        f"{memory.samples:,} samples in {memory.waves:,} waves"
        if memory.waves > 1
        else "all samples at once"
    )
    checkpointing = ", checkpointed" if plan.learner.checkpoints_activations else ""
    rows = [
        ("weights", memory.weights, plan.learner.dtype),
        ("gradients", memory.gradients, f"of {memory.trained / 1e6:,.1f}M parameters"),
        ("moments", memory.moments, "of AdamW"),
        ("reference", memory.reference, f"of {plan.algorithm_label}"),
        ("engine copy", memory.copy, plan.model.dtype),
        (
            "KV cache",
            memory.cache,
            f"{memory.slots} slots of {plan.rollouts.sequence_tokens:,} tokens: {samples}",
        ),
        (
            "activations",
            memory.activations,
            f"estimated, {micro_batch_of(plan):,} tokens{checkpointing}",
        ),
        ("together", memory.total, f"{free / 1e9:,.1f} GB are free on {place}"),
        ("each process", memory.each, f"of {memory.processes} of the learner on {place}"),
        (
            "host memory",
            memory.host,
            "of the run's weights and AdamW" if plan.learner.bytes.module == "host" else "of AdamW",
        ),
    ]
    lines = [f"  {name:<12}{size / 1e9:>8,.2f} GB  {detail}" for name, size, detail in rows if size]
    return [
        f"memory of {memory.parameters / 1e6:,.1f}M parameters (docs/hardware.md has the formula):",
        *lines,
    ]
