"""Faults of weight updates that trackers of trainers and engines report, as changes to what an
engine takes.

Each function gets what the learner published and what the engine had before, by the names of a
checkpoint, and returns what arrives instead. `Fault.thread` reports it or one of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: a few words.
        thread: repository and number of the issue or pull request.
        change: (published, before) to what arrives.
        family: of the tiny model in which it can happen.
    """

    name: str
    thread: str
    change: Callable[[Tensors, Tensors], Tensors]
    family: str = "qwen3"


def stale(*parts: str) -> Callable[[Tensors, Tensors], Tensors]:
    """Tensors whose names hold one of *parts* keep their old values."""

    def change(new: Tensors, old: Tensors) -> Tensors:
        return {n: old[n] if any(p in n for p in parts) else t for n, t in new.items()}

    return change


def edited(part: str, edit: Callable[[Tensor], Tensor]) -> Callable[[Tensors, Tensors], Tensors]:
    """The tensors whose names hold *part* arrive as *edit* leaves them."""

    def change(new: Tensors, old: Tensors) -> Tensors:
        return {n: edit(t) if part in n else t for n, t in new.items()}

    return change


def swapped(a: str, b: str) -> Callable[[Tensors, Tensors], Tensors]:
    """The tensors of *a* arrive as those of *b*, and the other way round."""

    def source(name: str) -> str:
        return name.replace(a, b) if a in name else name.replace(b, a)

    return lambda new, old: {n: new[source(n)] for n in new}


def half(new: Tensors, old: Tensors) -> Tensors:
    names = list(new)
    return {n: new[n] if i < len(names) // 2 else old[n] for i, n in enumerate(names)}


def twice(new: Tensors, old: Tensors) -> Tensors:
    return {n: t + (t - old[n]) for n, t in new.items()}


def averaged(new: Tensors, old: Tensors) -> Tensors:
    return {n: torch.lerp(old[n].float(), t.float(), 0.1) for n, t in new.items()}


def added_in(dtype: torch.dtype) -> Callable[[Tensors, Tensors], Tensors]:
    """The change is added to weights of *dtype*, which rounds most of it away."""

    def change(new: Tensors, old: Tensors) -> Tensors:
        deltas = {n: (t.float() - old[n].float()).to(dtype) for n, t in new.items()}
        return {n: old[n].to(dtype) + delta for n, delta in deltas.items()}

    return change


def through(dtype: torch.dtype) -> Callable[[Tensors, Tensors], Tensors]:
    return lambda new, old: {n: t.to(dtype) for n, t in new.items()}


def old_scale(new: Tensors, old: Tensors) -> Tensors:
    """Quantised with the largest number of now, read with that of before."""
    return {
        n: t * (old[n].abs().max() / t.abs().max()) if "down_proj" in n else t
        for n, t in new.items()
    }


def next_layer(new: Tensors, old: Tensors) -> Tensors:
    """Names of the second stage of a pipeline begin at 0 again."""
    return {n: new[n.replace("layers.1.", "layers.0.")] for n in new}


def first_slice(weight: Tensor) -> Tensor:
    """Every rank reads the slice of the first."""
    part = weight.chunk(2)[0]
    return torch.cat([part, part])


def interleaved(weight: Tensor) -> Tensor:
    """Rows of each head in the order of the other form of rotary embeddings; heads have 8 rows or
    more.
    """
    rows = weight.unflatten(0, (-1, 2, 4))
    return rows.transpose(1, 2).flatten(0, 2)


def one_bit(weight: Tensor) -> Tensor:
    changed = weight.clone()
    changed.view(-1)[7] = torch.nextafter(changed.view(-1)[7].float() * 1.01, torch.tensor(9.0))
    return changed


def tail_lost(new: Tensors, old: Tensors) -> Tensors:
    """The last bucket of a transfer is not flushed: its buffer holds zeros."""
    last = list(new)[-3:]
    return {n: torch.zeros_like(t) if n in last else t for n, t in new.items()}


def moved_up(weight: Tensor) -> Tensor:
    return torch.cat([weight[1:], weight[:1]])


def without_scale(weight: Tensor) -> Tensor:
    return weight * (448 / weight.abs().max())


def half_gathered(weight: Tensor) -> Tensor:
    kept = len(weight) // 2
    return torch.cat([weight[:kept], torch.zeros_like(weight[kept:])])


def last_rows_stale(*parts: str, rows: int) -> Callable[[Tensors, Tensors], Tensors]:
    def change(new: Tensors, old: Tensors) -> Tensors:
        return {
            n: torch.cat([t[:-rows], old[n][-rows:]]) if any(p in n for p in parts) else t
            for n, t in new.items()
        }

    return change


def turned(weight: Tensor) -> Tensor:
    return weight.t().contiguous()


FAULTS = (
    Fault("old version under the new label", "OpenPipe/ART#661", stale("")),
    Fault("frozen base sent", "verl-project/verl#7495", lambda new, old: dict(old)),
    Fault("a layer skipped", "NovaSky-AI/SkyRL#1737", stale("layers.1.")),
    Fault("first layer stale", "vllm-project/vime#329", stale("layers.0.")),
    Fault("input embeddings stale", "huggingface/trl#5766", stale("embed_tokens"), "llama"),
    Fault("output layer stale", "huggingface/trl#5766", stale("lm_head"), "llama"),
    Fault("norms stale", "huggingface/trl#5269", stale("norm")),
    Fault("last norm stale", "huggingface/trl#5269", stale("model.norm")),
    Fault("biases stale", "vllm-project/vllm-gaudi#1763", stale("bias"), "qwen2"),
    Fault(
        "one shard of joined projections stale",
        "vllm-project/vllm-omni#6649",
        stale("layers.1.self_attn.k_proj"),
    ),
    Fault("one of gate and up stale", "vllm-project/vllm#42550", stale("layers.0.mlp.up_proj")),
    Fault("crash in the middle", "RLinf/RLinf#1456", half),
    Fault("last bucket lost", "Open-Athena/MarinFold#236", tail_lost),
    Fault("update applied twice", "NovaSky-AI/SkyRL#1903", twice),
    Fault("averaged weights sent", "huggingface/trl#6975", averaged),
    Fault("update added in bfloat16", "pytorch/ao#1124", added_in(torch.bfloat16)),
    Fault("cast to bfloat16 on the way", "modelscope/ms-swift#9077", through(torch.bfloat16)),
    Fault("cast to float16 on the way", "modelscope/ms-swift#9077", through(torch.float16)),
    Fault(
        "scale of a quantisation missing",
        "Lightricks/LTX-2#172",
        edited("down_proj", without_scale),
    ),
    Fault("scale of a quantisation stale", "verl-project/verl#7136", old_scale),
    Fault(
        "square matrix transposed", "vllm-project/vllm#17272", edited("0.self_attn.o_proj", turned)
    ),
    Fault(
        "keys and values swapped",
        "NVIDIA-NeMo/Automodel#1324",
        swapped("k_proj", "v_proj"),
        "llama",
    ),
    Fault("gate and up swapped", "vllm-project/vllm#42821", swapped("gate_proj", "up_proj")),
    Fault("rows of heads permuted", "karpathy/llama2.c#286", edited("q_proj", interleaved)),
    Fault(
        "slice of another rank", "vllm-project/vllm-gguf-plugin#103", edited("v_proj", first_slice)
    ),
    Fault("layer of another stage", "vllm-project/vime#329", next_layer),
    Fault(
        "rows of new tokens stale",
        "huggingface/transformers#45079",
        last_rows_stale("embed_tokens", "lm_head", rows=4),
    ),
    Fault(
        "rows of the vocabulary shifted",
        "huggingface/transformers#33819",
        edited("embed_tokens", moved_up),
        "llama",
    ),
    Fault("one number wrong", "NovaSky-AI/SkyRL#1903", edited("layers.1.mlp.down_proj", one_bit)),
    Fault(
        "gathered from one rank of many",
        "Open-Athena/MarinFold#236",
        edited(
            "o_proj", lambda w: torch.cat([w[: len(w) // 2], torch.zeros_like(w[len(w) // 2 :])])
        ),
    ),
)

EXPERTS = (
    Fault(
        "experts permuted",
        "NovaSky-AI/SkyRL#1680",
        edited("mlp.experts.gate_up_proj", moved_up),
        "qwen3-moe",
    ),
    Fault(
        "one expert stale",
        "vllm-project/vllm#42577",
        last_rows_stale("mlp.experts", rows=1),
        "qwen3-moe",
    ),
    Fault("router stale", "vllm-project/vllm#42577", stale("mlp.gate."), "qwen3-moe"),
)
