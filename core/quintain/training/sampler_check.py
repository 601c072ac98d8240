"""The check of the sampler around an update: the run stops where engine and learner disagree about the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..interfaces.engine import TokenEngine
from ..interfaces.learner import PolicyLearner
from ..models.sampler_check import SamplerMismatch, own_logps, typical_difference
from ..types.rollout import AnyGroup, trained
from ..types.transcript import TrainingSequence
from .recipe.tables import Recipe
from .resolve import engine_kind, shares

EXACT, HALF = 0.01, 0.1
"""Limits in nats, see `typical_difference`, where engine and learner compute in float32, and elsewhere. Healthy runs
have 1e-6 and 0.005 to 0.02; mixed-up rows, wrong positions or a tensor that was not copied give 0.07 to 5."""


def max_mismatch(recipe: Recipe) -> float | None:
    """The limit that the recipe sets, or that of its precision; ``None`` is no check."""
    if (setting := recipe.run.max_mismatch) is not None:
        return None if setting == "none" else setting
    dtype = {"dtype": recipe.model.dtype, **recipe.engine.args}["dtype"]
    wide = dtype in ("float32", "float64") and recipe.learner.precision == "float32"
    return EXACT if wide and shares(engine_kind(recipe)) else HALF


async def rescored(
    engine: TokenEngine, groups: Sequence[AnyGroup], temperature: float, limit: float
) -> dict[str, float]:
    """Compare the log-probs of two sequences that the engine's present weights sampled with the engine's own scores.

    Raises:
        SamplerMismatch: they differ by more than *limit*.
    """
    fresh = [s for _, _, branches in trained(groups) for s in branches if set(s.versions) == {-1, engine.version}]
    largest = 0.0
    for sequence in fresh[:: max(1, len(fresh) - 1)]:
        recorded = [logp for logp, trains in zip(sequence.logps, sequence.mask, strict=True) if trains]
        largest = max(largest, found := typical_difference(recorded, await _scores(engine, sequence, temperature)))
        if found > limit:
            raise SamplerMismatch(_cache_fault(engine), found, limit, [sequence])
    return {"mismatch.sample": largest} if fresh else {}


async def explained(
    error: SamplerMismatch, learner: PolicyLearner, engine: TokenEngine, temperature: float
) -> SamplerMismatch:
    """*error* with the part at fault: the first that differs from the module's own forward."""
    module, half, copy = learner.module, error.difference / 2, getattr(engine, "snapshot", None)
    try:
        own = [logp for s in error.sequences for logp in own_logps(module, s, temperature)]
        scores = [logp for s in error.sequences for logp in await _scores(engine, s, temperature)]
        if typical_difference(error.prox_logp, own) > half:
            fault = f"the learner's forward differs from that of {type(module).__name__} itself"
        elif copy is not None and (tensor := copy.outdated(learner.weights())):
            fault = f"{_path(engine)} has another {tensor} than the learner"
        elif typical_difference(scores, own) > half:
            fault = f"{_path(engine)} differs from the forward of {type(module).__name__} itself"
        else:
            fault = _cache_fault(engine)
    except Exception as failure:  # noqa: BLE001 -- the mismatch is the error to show, whatever its explanation meets
        fault = f"{_path(engine)} or the learner ({type(failure).__name__} while comparing them: {failure})"
    return SamplerMismatch(fault, error.difference, error.limit, error.sequences, error.prox_logp)


async def _scores(engine: TokenEngine, sequence: TrainingSequence, temperature: float) -> list[float]:
    at = [i for i, trains in enumerate(sequence.mask) if trains]
    logps = await engine.score(sequence.ids, at[0], temperature) if at else []
    return [logps[i - at[0]] for i in at]


def _cache_fault(engine: TokenEngine) -> str:
    return f"the cache of {_path(engine)} was wrong during sampling: its scores of the finished text differ"


def _path(engine: TokenEngine) -> str:
    return str(getattr(engine, "path", engine.name))
