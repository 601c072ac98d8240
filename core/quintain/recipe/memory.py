"""The memory of a run by part, from the configuration of its model alone; docs/hardware.md explains
the formula.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..interfaces.learner import LearnerKind
from ..models.adapters import base_of, has_adapters
from ..models.forward import TOKEN_BUDGET
from ..models.head import CHUNK_ELEMENTS
from ..models.layers import Decoder, cache_shape
from ..models.load import cache_bytes
from ..models.packed import packs
from ..types.task import Message, messages_of
from .on_cpu import first_tasks, longest_prompt
from .plan import RunPlan

AUTOCAST_SHARE = 0.72
"""Bytes that autocast keeps for the backward pass, as a share of those in float32; measured, see
docs/hardware.md.
"""

PICTURES = 4
"""Tasks of an environment whose pictures are measured."""
PROGRAM = 550_000_000
"""Bytes of a process with Python, torch and the libraries of a run, all its modules imported; measured,
see docs/hardware.md.
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
        sequence: tokens of a sequence at most, as expected.
        tokens: of a micro-batch at most.
        cache: keys and values of all slots.
        activations: estimated, with what autocast and the logits take.
        pictures: of a model that sees: what its vision tower keeps for the backward pass of a
            micro-batch, and the features and inputs that are cached.
        program: of the process itself, where they are in the same memory as the rest.
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
    program: int = 0
    pictures: int = 0
    sequence: int = 0
    tokens: int = 0

    @property
    def fixed(self) -> int:
        """What the run takes whatever it samples."""
        return self.weights + self.gradients + self.moments + self.reference + self.copy

    @property
    def total(self) -> int:
        """All parts at once: keys and values stay while the learner updates."""
        used = self.fixed + self.cache + self.activations + self.pictures
        return max(self.loading, used) + self.program

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
    lora = has_adapters(module)  # a frozen vision tower is none
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
            + (prompt_copies(plan, module) if free is None else 0)
            + update_bytes(plan, module, parameters, adapters=lora)
            + logits_bytes(plan, module, "cpu" if free is None else "gpu")
        ),
        samples=plan.rollouts.samples,
        program=PROGRAM if free is None else 0,
        pictures=picture_bytes(plan, module),
        sequence=sequence_tokens(plan, module),
        tokens=micro_batch_of(plan, module),
    )
    if needed.own or needed.processes > 1:
        of_all_processes = memory.gradients + memory.moments + memory.reference + memory.activations
        each = int(needed.own * parameters + of_all_processes) // needed.processes
        memory = replace(memory, processes=needed.processes, each=each)
    if not plan.engine.beside_learner:
        return memory
    room = None if free is None else cache_room(free, memory)
    slots = plan.engine_slots(module, room=room)
    # On a CPU an evaluation takes more of them than a step. On a GPU they are bounded by its room.
    most = max(memory.samples, evaluated_at_once(plan)) if free is None else memory.samples
    cache = min(slots, most) * cache_bytes(module, memory.sequence, dtype)
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
    hidden, heads, inner = config.hidden_size, config.num_attention_heads, _inner_size(config)
    layer = (
        4
        * (3.5 * hidden + 3 * inner + 3.5 * heads * size + 4 * key_heads * size)
        * (AUTOCAST_SHARE if plan.learner.precision != "float32" else 1)
    )
    checkpointing = plan.learner.checkpoints_activations
    kept = 4 * hidden * 2 + (4 * hidden * layers + layer if checkpointing else layer * layers)
    return int(micro_batch_of(plan, module) * kept)


def _inner_size(config: Any) -> int:
    inner: Any = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return int(max(inner) if isinstance(inner, list) else inner)  # one for each layer


def prompt_copies(plan: RunPlan, module: Any) -> int:
    """Return the estimated bytes of keys and values that the layers copy of the prompts of a
    micro-batch and keep for the backward pass, on a CPU.

    A prompt is computed once for its group. Its keys and values are copied for each reply, whose
    tokens attend to them and to their own: 2 K E numbers of each token that a reply sees (K key heads
    of size E). Kernels of a GPU copy none, and a module's own forward has a prompt in each row.
    """
    if Decoder.of(module) is None:
        return 0
    layers, key_heads, size = cache_shape(base_of(module).config.get_text_config())
    held = groups_of_micro_batch(plan, module)
    copied = held.groups * held.replies * (held.prompt + held.reply)
    if held.shared:  # replies of a tree attend side by side
        copied = held.groups * (held.prompt + held.replies * held.reply)
    return (
        4 * 2 * key_heads * size * copied * (1 if plan.learner.checkpoints_activations else layers)
    )


@dataclass(frozen=True, kw_only=True)
class GroupsOfMicroBatch:
    """The groups that a micro-batch is estimated to hold.

    Attributes:
        groups: how many.
        replies: of each. A group that is larger than a micro-batch is cut into parts, which have its
            prompt each.
        prompt, reply: tokens of each.
        shared: tokens that the prompts begin with alike, which are computed once.
    """

    groups: int
    replies: int
    prompt: int
    reply: int
    shared: int


def groups_of_micro_batch(plan: RunPlan, module: Any) -> GroupsOfMicroBatch:
    """Return the groups that a micro-batch is estimated to hold."""
    tokens, rollouts = micro_batch_of(plan, module), plan.rollouts
    text = longest_prompt(plan.tasks.environments)
    prompt = text.mean + picture_tokens(plan, module)
    reply = max(rollouts.max_tokens // 2, 1)
    replies = min(rollouts.group_size, max(1, (tokens - prompt) // reply))
    groups = max(1, (tokens - text.shared) // (prompt - text.shared + replies * reply))
    return GroupsOfMicroBatch(
        groups=min(groups, rollouts.groups),
        replies=replies,
        prompt=prompt,
        reply=reply,
        shared=text.shared,
    )


def picture_tokens(plan: RunPlan, module: Any) -> int:
    """Return the tokens of the pictures in a prompt: the most of the first tasks."""
    count = getattr(base_of(module), "tokens_of_pictures", None)
    return max(map(count, first_prompts(plan)), default=0) if count else 0


def picture_bytes(plan: RunPlan, module: Any) -> int:
    """Return the estimated bytes that the pictures of a run take beside their tokens.

    The vision tower keeps what its backward pass needs of the pictures of a micro-batch, if it trains.
    Features that it computes without a gradient, and what the image processor makes of a picture, are
    cached, of the pictures of a step at least.
    """
    sees = base_of(module)
    if not hasattr(sees, "bytes_of_pictures"):
        return 0
    sizes = [sees.bytes_of_pictures(prompt) for prompt in first_prompts(plan)]
    kept = max((size.kept for size in sizes), default=0)
    cached = max((size.cached for size in sizes), default=0)
    share = AUTOCAST_SHARE if plan.learner.precision != "float32" else 1
    groups = groups_of_micro_batch(plan, module).groups
    most = max(plan.rollouts.groups, evaluated_at_once(plan))
    of_cache: int = min(most * cached, sees.cache_bytes)
    return int(share * groups * kept) + of_cache


def first_prompts(plan: RunPlan) -> list[list[Message]]:
    """Return the prompts of the first tasks of each environment that needs no service."""
    return [
        messages_of(task.prompt)
        for spec in plan.tasks.environments
        for task in first_tasks(spec)[:PICTURES]
    ]


def sequence_tokens(plan: RunPlan, module: Any) -> int:
    """Return the tokens of a sequence that are expected at most, with those of pictures."""
    return plan.rollouts.sequence_tokens + picture_tokens(plan, module)


def evaluated_at_once(plan: RunPlan) -> int:
    """Return how many episodes of an evaluation there are, all of which may run at once."""
    evaluation = plan.evaluation
    splits = [evaluation.tasks if evaluation.every else 0, evaluation.test_tasks]
    tasks = max(sys.maxsize if split is None else split for split in splits)
    return tasks * evaluation.samples


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
    return number * min(CHUNK_ELEMENTS[place], micro_batch_of(plan, module) * vocabulary)


def micro_batch_of(plan: RunPlan, module: Any) -> int:
    """Return the tokens of a micro-batch at most: it has one sequence or more."""
    return max(plan.learner.token_budget or TOKEN_BUDGET, sequence_tokens(plan, module))


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
            f"{memory.slots} slots of {memory.sequence:,} tokens: {samples}",
        ),
        (
            "activations",
            memory.activations,
            f"estimated, {memory.tokens:,} tokens{checkpointing}",
        ),
        ("pictures", memory.pictures, "of the vision tower, and cached"),
        ("program", memory.program, "Python and its libraries"),
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
