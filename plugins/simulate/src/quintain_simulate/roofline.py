"""Costs by the data sheets of GPUs: what has to be read and multiplied, and how fast that can be.

A step of decoding reads all weights once and the keys and values of every sequence, and multiplies
the weights with one token of each. A prompt is multiplied at once. An update multiplies each token
three times, forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quintain import Algorithm
from quintain.errors import UsageError

from .costs import EngineCosts, LearnerCosts
from .hardware import Gpu, ModelShape, gpu_named
from .setup import SimulationSetup

BYTES = 2
"""Of a weight, key or value while sampling: half precision."""
SIZES = frozenset({"slots", "capacity"})
"""What `EngineCosts` has beside seconds."""
NO_CONFIGURATION = (
    "the model of the recipe has no configuration here: name its size, as in --with model=8b"
)


def engine_costs(setup: SimulationSetup, shape: ModelShape | None) -> EngineCosts:
    """Return the costs of one engine: those of ``[engine]``, the others by its GPUs.

    Raises:
        UsageError: neither is known, or the weights do not fit.
    """
    written = _written(setup.engine)
    if not engine_by_gpu(setup):
        return EngineCosts(**written)
    if shape is not None:
        return EngineCosts(**{**_engine_by_gpu(setup, shape), **written})
    if SIZES.issuperset(written):
        raise UsageError(f"{NO_CONFIGURATION}, or write the costs of [engine] and [learner]")
    return EngineCosts(**written)


def engine_by_gpu(setup: SimulationSetup) -> set[str]:
    """Return the seconds of an engine that ``[engine]`` leaves to its GPUs. Where it has all of
    them, as those of a run are, the GPU limits neither slots nor memory.
    """
    return type(setup.engine).model_fields.keys() - SIZES - _written(setup.engine).keys()


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
        "capacity": room / shape.cache_bytes,
    }


def forward_passes(algorithm: Algorithm, groups: int) -> float:
    """Return the passes that an update on *groups* groups takes for a token, forward ones with the
    backward pass as two: each epoch, ref, and prox of what trains after the first optimizer step.
    """
    minibatches = min(algorithm.minibatches, groups)
    # as in `quintain.learning.learner.Learner.prepare`
    prox = 1.0 if algorithm.scores_prox else 1 - 1 / minibatches
    return 3 * algorithm.epochs + algorithm.uses_reference + prox


def learner_costs(setup: SimulationSetup, shape: ModelShape | None, passes: float) -> LearnerCosts:
    """Return the costs of the learner: those of ``[learner]``, the others by its GPUs.

    Args:
        passes: `forward_passes` of an update.

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
    return LearnerCosts(**{**_learner_by_gpu(setup, shape, passes), **written})


def _learner_by_gpu(setup: SimulationSetup, shape: ModelShape, passes: float) -> dict[str, Any]:
    gpu, cluster, assumed = gpu_named(setup.cluster.gpu), setup.cluster, setup.assumed
    flops = gpu.flops * learner_gpus(setup) * assumed.mfu
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


def assumptions(
    setup: SimulationSetup, shape: ModelShape | None, engine: EngineCosts, learner: LearnerCosts
) -> list[str]:
    """Return what a simulation with the costs *engine* and *learner* assumes, one line each."""
    lines = []
    cluster, assumed, episodes = setup.cluster, setup.assumed, setup.episodes
    engine_left = engine_by_gpu(setup) if shape is not None else set()
    learner_left = type(setup.learner).model_fields.keys() - _written(setup.learner).keys()
    if shape is None:
        learner_left = set()
    if engine_left or learner_left:
        gpu: Gpu = gpu_named(cluster.gpu)
        lines.append(
            f"{gpu.name}: {gpu.memory / 1e9:g} GB, {gpu.bandwidth / 1e9:,.0f} GB/s, "
            f"{gpu.flops / 1e12:g} TFLOP/s in bfloat16 (data sheet)"
        )
    if engine_left & {"weights", "context"}:
        lines.append(f"decoding reaches {assumed.bandwidth:.0%} of the bandwidth")
    if engine_left & {"compute", "prefill", "prefill_context"}:
        lines.append(f"prompts and large batches reach {assumed.compute:.0%} of the FLOP/s")
    lines.append(f"a step of decoding takes {1e3 * engine.overhead:.1f} ms beside")
    if written := _seconds(setup.engine):
        lines.append(f"the engine's seconds as written or measured: {written}")
    if "token" in learner_left:
        lines.append(f"the learner reaches {assumed.mfu:.0%} of the FLOP/s")
    lines.append(f"an update takes {learner.base:g} s beside its tokens")
    if written := _seconds(setup.learner):
        lines.append(f"the learner's seconds as written or measured: {written}")
    by_network = f", by {assumed.transfer:g} s and their bytes at {cluster.network:g} GB/s a GPU"
    lines.append(
        f"weights take {learner.transfer:.3g} s to the engines"
        + (by_network if "transfer" in learner_left else "")
    )
    if cluster.shared:
        lines.append(
            "engines and learner take turns on the GPUs and each has the whole memory in its turn: "
            "what the other one holds is elsewhere meanwhile"
        )
    reply = episodes.reply.text if episodes.reply else "by sampling.max_tokens"
    lines.append(
        f"episodes: turns {episodes.turns.text}, prompt {episodes.prompt.text}, reply {reply}, "
        f"tool tokens {episodes.added.text}, waits {episodes.wait.text} s, start "
        f"{episodes.start.text} s, {episodes.lost:.1%} lost"
    )
    capacity = f"{engine.capacity:,.0f}" if math.isfinite(engine.capacity) else "any number of"
    lines.append(
        f"an engine decodes {engine.slots} sequences at once, with {capacity} tokens in all"
    )
    if setup.failures.hours:
        lines.append(
            f"an engine fails every {setup.failures.hours:g} h and is away for "
            f"{setup.failures.restart:g} s"
        )
    return lines


def _seconds(table: Any) -> str:
    """Return the seconds that *table* has, with their names; empty for none."""
    written = _written(table)
    return ", ".join(f"{name} {value:g}" for name, value in written.items() if name not in SIZES)


def _written(table: Any) -> Mapping[str, Any]:
    return table.model_dump(exclude_none=True)  # type: ignore[no-any-return]
