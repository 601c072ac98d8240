"""Part 2: tokens per second of the learner's step and its share of the device's FLOP/s, at the
shapes of Qwen3-0.6B and 1.7B with random weights, in bf16, and which attention kernels ran.

A step is `Learner.step` by dr_grpo on one batch: forward and backward passes, clipping, AdamW with
float32 moments. Operations that count are those that the update takes at least
(`work.training_flops`): nothing computed twice, the output layer at trained tokens alone. A quarter
of each sample is its prompt.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from quintain.learning import Learner

from . import card
from .kernels import profiled, waits
from .part import Part, start
from .work import algorithm, module_of, random_batch, training_flops

AIM = 0.4
SAMPLES = {4096: 8, 16384: 4}
BUDGET = 16_384
"""Tokens of a micro-batch."""


def learner_of(size: str, device: torch.device, *, checkpointing: bool, budget: int) -> Learner:
    """Return a learner of a model with random weights."""
    return Learner(
        module_of(size, device),
        algorithm(),
        lr=1e-6,
        precision="bf16",
        token_budget=budget,
        activation_checkpointing=checkpointing,
    )


def speed(
    part: Part, size: str, tokens: int, samples: int, group_size: int, *, checkpointing: bool
) -> dict[str, Any]:
    """Time steps on *samples* samples of *tokens* tokens; groups of *group_size* share their
    prompt.
    """
    device, peaks = part.device, part.compute_peaks()
    learner = learner_of(
        size, device, checkpointing=checkpointing, budget=max(tokens, part_budget(part))
    )
    prompt = tokens // 4
    batch = random_batch(
        learner.module,
        groups=samples // group_size,
        group_size=group_size,
        prompt=prompt,
        lengths=[tokens + 1 - prompt],
    )
    # advantages are given: a group of one sample has none by itself
    values = [1.0 if i % 2 else -1.0 for i in range(samples)]

    def step() -> None:
        learner.step(batch, advantages=values)

    card.reset_peak(device)
    began = time.monotonic()
    step()
    card.synchronize(device)
    first = time.monotonic() - began
    room = max(0.0, min(25.0, part.left / 4))
    repeats = max(1, min(5, int(room / max(first, 1e-3))))
    times = card.seconds(step, device, warm_up=0, repeats=repeats)
    seconds, flops = statistics.median(times), training_flops(learner.module, batch)
    figures = {
        "tokens": samples * tokens,
        "checkpointing": checkpointing,
        "layout": learner.forward.layout,
        "first_seconds": first,
        "seconds": seconds,
        "repeats": repeats,
        "tokens_per_second": samples * tokens / seconds,
        "flops": flops,
        "flops_per_second": flops / seconds,
        "peak": card.peak(device),
        "aim": AIM,
    }
    if peaks:
        figures["mfu"] = flops / seconds / peaks["flops"]
    if nominal := part.record["card"].get("nominal", {}).get("flops"):
        figures["mfu_nominal"] = flops / seconds / nominal
    small = random_batch(
        learner.module,
        groups=1,
        group_size=group_size,
        prompt=prompt,
        lengths=[tokens + 1 - prompt],
    )
    figures["host_waits"] = waits(
        lambda: learner.step(small, advantages=values[:group_size]), device
    )
    figures["kernels"] = profiled(
        lambda: learner.step(small, advantages=values[:group_size]), device
    )
    return figures


def part_budget(part: Part) -> int:
    """Return the tokens of a micro-batch."""
    return 64 if part.rehearse else BUDGET


def checkpointed_if_needed(part: Part, name: str, expected: float, *shape: Any) -> None:
    """Measure without checkpointing; where memory does not suffice, also with it."""
    found = part.measure(name, lambda: speed(part, *shape, checkpointing=False), expected=expected)
    if found is None and "out_of_memory" in part.record["steps"][name]:
        part.measure(
            f"{name}, checkpointed",
            lambda: speed(part, *shape, checkpointing=True),
            expected=expected,
        )


def run(part: Part) -> None:
    part.compute_peaks()
    if part.rehearse:
        cases = [("0.1M", 32, 4, 1), ("0.1M", 32, 4, 4), ("0.1M", 128, 2, 1)]
    else:
        cases = [
            ("0.6B", 4096, 8, 1),
            ("1.7B", 4096, 8, 1),
            ("0.6B", 16_384, 4, 1),
            ("0.6B", 4096, 8, 8),
            ("1.7B", 16_384, 4, 1),
            ("1.7B", 4096, 8, 8),
        ]
    for size, tokens, samples, group_size in cases:
        shared = f", prompt shared by {group_size}" if group_size > 1 else ""
        checkpointed_if_needed(
            part, f"{size} {tokens} tokens{shared}", 40, size, tokens, samples, group_size
        )
    size, tokens, samples, group_size = cases[0]
    part.measure(
        f"{size} {tokens} tokens, checkpointed",
        lambda: speed(part, size, tokens, samples, group_size, checkpointing=True),
        expected=40,
    )


if __name__ == "__main__":
    start(run, __doc__, "2-training")
