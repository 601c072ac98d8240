"""Costs by the data sheets of GPUs: what has to be read and multiplied, and how fast that can be.

A step of decoding reads all weights once and the keys and values of every sequence, and multiplies
the weights with one token of each. A prompt is multiplied at once. An update multiplies each token
three times, forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quintain.errors import UsageError

from .costs import EngineCosts, LearnerCosts
from .hardware import Gpu, ModelShape, gpu_named
from .setup import SimulationSetup

BYTES = 2
"""Of a weight, key or value while sampling: half precision."""
SLOTS = 256
"""Sequences that an engine decodes at once by default."""


def engine_costs(setup: SimulationSetup, shape: ModelShape | None) -> EngineCosts:
    """Return the costs of one engine: those of ``[engine]``, the others by its GPUs.

    Raises:
        UsageError: neither is known, or the weights do not fit.
    """
    written = _written(setup.engine)
    if {"slots", "capacity"}.issuperset(written):
        if shape is None:
            raise UsageError(
                "the model of the recipe has no configuration here: name its size, as in "
                "--with model=8b, or write the costs of [engine] and [learner]"
            )
        return EngineCosts(**{**_engine_by_gpu(setup, shape), **written})
    return EngineCosts(**written)


def _engine_by_gpu(setup: SimulationSetup, shape: ModelShape) -> dict[str, Any]:
    gpu, count, assumed = gpu_named(setup.cluster.gpu), setup.cluster.gpus_per_engine, setup.assumed
    bandwidth = gpu.bandwidth * count * assumed.bandwidth
    flops = gpu.flops * count * assumed.compute
    room = gpu.memory * count * assumed.memory - BYTES * shape.parameters
    if room < 1000 * shape.cache_bytes:
        raise UsageError(
            f"{BYTES * shape.parameters / 1e9:,.0f} GB of weights leave {room / 1e9:,.0f} GB for "
            f"keys and values on {count} x {gpu.name}: raise cluster.gpus_per_engine"
        )
    exchanges = 2 * shape.layers * assumed.exchange if count > 1 else 0.0
    return {
        "overhead": assumed.step + exchanges,
        "weights": BYTES * shape.parameters / bandwidth,
        "compute": 2 * shape.active / flops,
        "context": shape.cache_bytes / bandwidth,
        "prefill": 2 * shape.active / flops,
        "prefill_context": shape.pair_flops / flops,
        "slots": SLOTS,
        "capacity": room / shape.cache_bytes,
    }


def learner_costs(setup: SimulationSetup, shape: ModelShape | None, frozen: int) -> LearnerCosts:
    """Return the costs of the learner: those of ``[learner]``, the others by its GPUs.

    Args:
        frozen: further passes over a batch without a gradient: a reference, or prox.

    Raises:
        UsageError: neither is known.
    """
    written = _written(setup.learner)
    if shape is None:
        if not written:
            raise UsageError(
                "the seconds of the learner are not known: write those of [learner], such as "
                "base and token, or name the size of the model, as in --with model=8b"
            )
        return LearnerCosts(**written)
    return LearnerCosts(**{**_learner_by_gpu(setup, shape, frozen), **written})


def _learner_by_gpu(setup: SimulationSetup, shape: ModelShape, frozen: int) -> dict[str, Any]:
    gpu, cluster, assumed = gpu_named(setup.cluster.gpu), setup.cluster, setup.assumed
    flops = gpu.flops * learner_gpus(setup) * assumed.mfu
    passes = 3 + frozen
    per_gpu = BYTES * shape.parameters / cluster.gpus_per_engine
    return {
        "base": assumed.update,
        "token": 2 * passes * shape.active / flops,
        "pair": passes * shape.pair_flops / flops,
        "transfer": assumed.transfer + per_gpu / (1e9 * cluster.network),
    }


def sampling_gpus(setup: SimulationSetup) -> int:
    """Return the GPUs of all engines."""
    return setup.cluster.engines * setup.cluster.gpus_per_engine


def learner_gpus(setup: SimulationSetup) -> int:
    """Return the GPUs of the learner: those of the engines where they are shared."""
    return sampling_gpus(setup) if setup.cluster.shared else setup.cluster.learner_gpus


def all_gpus(setup: SimulationSetup) -> int:
    """Return the GPUs of the cluster."""
    return sampling_gpus(setup) + (0 if setup.cluster.shared else setup.cluster.learner_gpus)


def assumptions(setup: SimulationSetup, shape: ModelShape | None, costs: EngineCosts) -> list[str]:
    """Return what a simulation assumes, one line each."""
    lines = []
    cluster, assumed, episodes = setup.cluster, setup.assumed, setup.episodes
    by_gpu = {"slots", "capacity"}.issuperset(_written(setup.engine))
    if by_gpu and shape is not None:
        gpu: Gpu = gpu_named(cluster.gpu)
        lines += [
            f"{gpu.name}: {gpu.memory / 1e9:g} GB, {gpu.bandwidth / 1e9:,.0f} GB/s, "
            f"{gpu.flops / 1e12:g} TFLOP/s in bfloat16 (data sheet)",
            f"decoding reaches {assumed.bandwidth:.0%} of the bandwidth, prompts {assumed.compute:.0%} "
            f"of the FLOP/s, a step takes {1e3 * costs.overhead:.1f} ms beside",
        ]
    else:
        lines.append("the engine's seconds are as written or measured")
    if shape is not None and not setup.learner.token:
        lines.append(
            f"the learner reaches {assumed.mfu:.0%} of the FLOP/s, and takes {assumed.update:g} s "
            f"beside its tokens"
        )
    if not setup.learner.transfer:
        lines.append(
            f"weights take {assumed.transfer:g} s and their bytes at {cluster.network:g} GB/s a GPU"
        )
    reply = episodes.reply.text if episodes.reply else "by sampling.max_tokens"
    lines.append(
        f"episodes: turns {episodes.turns.text}, prompt {episodes.prompt.text}, reply {reply}, "
        f"tool tokens {episodes.added.text}, waits {episodes.wait.text} s, start "
        f"{episodes.start.text} s, {episodes.lost:.1%} lost"
    )
    capacity = f"{costs.capacity:,.0f}" if math.isfinite(costs.capacity) else "any number of"
    lines.append(
        f"an engine decodes {costs.slots} sequences at once, with {capacity} tokens in all"
    )
    if setup.failures.hours:
        lines.append(
            f"an engine fails every {setup.failures.hours:g} h and is away for "
            f"{setup.failures.restart:g} s"
        )
    return lines


def _written(table: Any) -> Mapping[str, Any]:
    return table.model_dump(exclude_none=True)  # type: ignore[no-any-return]
