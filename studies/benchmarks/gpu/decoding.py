"""Part 3: tokens per second of the embedded engine and of ``transformers.generate`` by batch,
against the bytes that the device must read for them; vLLM where it can be imported.

The shape of Qwen3-0.6B with random weights in bfloat16, prompts of random ids, all different,
temperature 1, no id ends a reply. The engine returns the log-prob of each token, ``generate`` does
not. The time of decoding is the difference of two runs with few and with many new tokens, so that
neither prompts nor starting counts; bytes are those that each step reads at least: every matrix
once, and the keys and values of the rows (`work.step_bytes`). The bandwidth beside it is that of a
plain read in the same run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import torch

from quintain.engine.embedded import EmbeddedEngine

from .. import shapes
from . import card
from .kernels import profiled
from .part import Part, start
from .work import NoText, module_of, prompts_of, sample, step_bytes

AIM = 0.6
BATCHES = (64, 256, 1, 16)
"""Rows at once, the most telling first."""
PROMPT, FEW, MANY = 128, 16, 272


def decoding_seconds(
    generate: Callable[[int], Any], device: torch.device, few: int, many: int, rounds: int
) -> dict[str, float]:
    """Return the median seconds of ``generate(many)``, and what it takes more than
    ``generate(few)``.
    """
    pairs = []
    for i in range(-1, rounds):
        times = [
            card.seconds(lambda n=new: generate(n), device, warm_up=0, repeats=1)[0]
            for new in (few, many)
        ]
        if i >= 0:
            pairs.append(times)
    return {
        "seconds": statistics.median(long for _, long in pairs),
        "decoding_seconds": statistics.median(long - short for short, long in pairs),
    }


def speeds(part: Part, side: str, size: str, rows: int) -> dict[str, Any]:
    """Time one side with *rows* rows."""
    device = part.device
    prompt, few, many = (8, 2, 10) if part.rehearse else (PROMPT, FEW, MANY)
    module = module_of(size, device, torch.bfloat16)
    prompts = prompts_of(module, [prompt] * rows)
    generate: Callable[[int], Any]
    if side != "generate":
        settings = {"slots": rows, "context": prompt + many, "graphs": side == "engine"}
        engine = EmbeddedEngine.sharing(module, NoText(), **settings)

        def generate(new: int) -> None:
            replies = sample(engine, prompts, new)
            assert all(len(reply.ids) == new for reply in replies), "no id ends a reply"
    else:

        def generate(new: int) -> None:
            assert shapes.generate(module, prompts, new) == new * rows

    card.reset_peak(device)
    figures: dict[str, Any] = decoding_seconds(generate, device, few, many, rounds=2)
    # the first of the counted tokens reads prompt + few tokens, the last prompt + many - 1
    bytes_read = (many - few) * step_bytes(module, prompt + (few + many - 1) / 2, rows)
    decoding = figures["decoding_seconds"]
    figures |= {
        "rows": rows,
        "tokens_per_second": rows * (many - few) / decoding,
        "step_ms": 1000 * decoding / (many - few),
        "whole_tokens_per_second": rows * many / figures["seconds"],
        "bytes_per_second": bytes_read / decoding,
        "peak": card.peak(device),
        "aim": AIM,
    }
    if peaks := part.compute_peaks():
        figures["bandwidth"] = figures["bytes_per_second"] / peaks["read"]
    if nominal := part.record["card"].get("nominal", {}).get("bandwidth"):
        figures["bandwidth_nominal"] = figures["bytes_per_second"] / nominal
    figures["kernels"] = profiled(lambda: generate(few), device)
    return figures


def vllm(part: Part, size: str) -> dict[str, Any]:
    """`studies.benchmarks.engines`: the embedded engine, both engines of vLLM, ``generate``."""
    from ..engines import Batch, measure

    if part.rehearse:
        return asyncio.run(measure(size, 1, Batch(rows=4, new=8), str(part.device)))
    return asyncio.run(measure(size, 3, Batch(), str(part.device)))


def run(part: Part) -> None:
    part.compute_peaks()
    size, batches = ("0.1M", (4, 1)) if part.rehearse else ("0.6B", BATCHES)
    for rows in batches:
        for side in ("engine", "generate", "engine without graphs"):
            part.measure(
                f"{side} {size} {rows} rows",
                lambda s=side, r=rows: speeds(part, s, size, r),
                expected=30,
            )
    if importlib.util.find_spec("vllm") is None:
        part.record["steps"]["vllm"] = {"skipped": "vLLM is not importable"}
        part.save()
    else:
        part.measure(f"vllm {size} 64 rows", lambda: vllm(part, size), expected=90)
    if not part.rehearse:
        for rows in (64, 256):
            part.measure(
                f"engine 1.7B {rows} rows",
                lambda r=rows: speeds(part, "engine", "1.7B", r),
                expected=30,
            )


if __name__ == "__main__":
    start(run, __doc__, "3-decoding")
