"""Costs by the data sheets of GPUs: what has to be read and multiplied, and how fast that can be.

A step of decoding reads all weights once and the keys and values of every sequence, and multiplies
the weights with one token of each. A prompt is multiplied at once. An update multiplies each token
three times, forward and backward.
"""

from __future__ import annotations

from typing import Any

from quintain import Algorithm
from quintain.errors import UsageError

from .costs import EngineCosts, LearnerCosts
from .hardware import ModelShape, gpu_named
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
    written = setup.engine.written()
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
    return type(setup.engine).model_fields.keys() - SIZES - setup.engine.written().keys()


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
    written = setup.learner.written()
    if shape is None:
        if not written:
            raise UsageError(
                "the seconds of the learner are not known: write those of [learner], such as "
                "base and token, or name the size of the model, as in --with model=8b"
            )
        return LearnerCosts(**written)
    return LearnerCosts(**{**_learner_by_gpu(setup, shape, passes), **written})


def learner_by_gpu(setup: SimulationSetup) -> set[str]:
    """Return the seconds of the learner that ``[learner]`` leaves to its GPUs."""
    return type(setup.learner).model_fields.keys() - setup.learner.written().keys()


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
