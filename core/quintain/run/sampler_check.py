"""The check of the sampler around an update: the run stops where engine and learner disagree about
the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..errors import UndeliveredWeights
from ..interfaces.engine import TokenEngine, Weights
from ..interfaces.learner import AnyLearner
from ..models.sampler_mismatch import (
    SamplerMismatch,
    largest_difference,
    own_logps,
    token_limit,
    typical_difference,
)
from ..types.rollout import AnyGroup, trained
from ..types.transcript import TrainingSequence


async def check_delivery(
    engine: TokenEngine, published: Sequence[Weights], weights: Weights
) -> None:
    """Compare what was *published* and what the engine computes with, bit for bit, with the
    learner's live *weights*, at a time when both have the newest version.

    Raises:
        UndeliveredWeights: a tensor differs.
    """
    oldest = published[0]
    newest = published[-1]
    # With a staleness the newest version is a copy, which must be of the weights of now.
    if newest is not weights and newest.version == weights.version:
        learner = weights.tensors()
        for name, tensor in newest.tensors().items():
            if not tensor.equal(learner[name].to(tensor)):
                raise UndeliveredWeights("the published copy", name, weights.version)
    if engine.version == oldest.version:
        name = await engine.outdated(oldest)
        if name:
            raise UndeliveredWeights(_path(engine), name, engine.version)


async def rescored(
    engine: TokenEngine,
    groups: Sequence[AnyGroup],
    temperature: float,
    limit: float,
    *,
    exact: bool = False,
) -> dict[str, float]:
    """Compare the log-probs of two sequences that the engine's present weights sampled with the
    engine's own scores.

    Raises:
        SamplerMismatch: they differ by more than *limit*, or single tokens by more than its
            `token_limit`.
    """
    fresh = []
    for _, _, sequences in trained(groups):
        # -1 is the version of tokens that nobody sampled. A sequence with any other was sampled, in
        # part at least, before an update.
        fresh += [s for s in sequences if set(s.versions) == {-1, engine.version}]
    if not fresh:
        return {}
    largest = 0.0
    # The first and the last, since each score takes a forward pass of the engine.
    for sequence in fresh[:: max(1, len(fresh) - 1)]:
        recorded, scores = await _log_probs(engine, [sequence], temperature)
        typical = typical_difference(recorded, scores)
        largest = max(largest, typical)
        single = largest_difference(recorded, scores, exact=exact)
        for difference, most in ((typical, limit), (single, token_limit(limit, exact=exact))):
            if not difference <= most:
                fault = _cache_fault(engine, recorded, scores, limit)
                raise SamplerMismatch(fault, difference, most, [sequence])
    return {"mismatch.sample": largest}


async def explained(
    error: SamplerMismatch, learner: AnyLearner, engine: TokenEngine, temperature: float
) -> SamplerMismatch:
    """Return *error* with the part at fault: the first that differs from the module's own forward."""
    module = learner.module
    try:
        module_logps = []
        for sequence in error.sequences:
            module_logps += own_logps(module, sequence, temperature)
        recorded, scores = await _log_probs(engine, error.sequences, temperature)
        # Of two parts that differ, one is off the module's own forward by half of it or more.
        half = _gap(recorded, error.prox_logp) / 2
        if _gap(error.prox_logp, module_logps) > half:
            fault = f"the learner's forward differs from that of {type(module).__name__} itself"
        elif tensor := await engine.outdated(learner.weights()):
            fault = f"{_path(engine)} has another {tensor} than the learner"
        elif _gap(scores, module_logps) > half:
            fault = f"{_path(engine)} differs from the forward of {type(module).__name__} itself"
        else:
            fault = _cache_fault(engine, recorded, scores, error.limit)
    except Exception as failure:  # noqa: BLE001 -- the mismatch is the error to show, whatever its explanation meets
        fault = (
            f"{_path(engine)} or the learner ({type(failure).__name__} while comparing them: "
            f"{failure})"
        )
    return SamplerMismatch(
        fault, error.difference, error.limit, error.sequences, error.prox_logp, error.samples
    )


async def _log_probs(
    engine: TokenEngine, sequences: Sequence[TrainingSequence], temperature: float
) -> tuple[list[float], list[float]]:
    """Return what the engine recorded of the tokens that train, and its scores now."""
    recorded: list[float] = []
    scores: list[float] = []
    for s in sequences:
        positions = [i for i, trains in enumerate(s.mask) if trains]
        if positions:
            logps = await engine.score(s.ids, positions[0], temperature)
            recorded += [s.logps[i] for i in positions]
            scores += [logps[i - positions[0]] for i in positions]
    return recorded, scores


def _gap(a_logp: Sequence[float], b_logp: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(a_logp, b_logp, strict=True))


def _cache_fault(
    engine: TokenEngine, recorded: Sequence[float], scores: Sequence[float], limit: float
) -> str:
    pairs = enumerate(zip(recorded, scores, strict=True), start=1)
    # `typical_difference` of a single token is a ninth of its gap: this token alone is over the limit.
    place = next(
        (
            f", from its token {i} of {len(scores)} on"
            for i, (a, b) in pairs
            if abs(a - b) > 9 * limit
        ),
        "",
    )
    return (
        f"the cache of {_path(engine)} was wrong during sampling, or it reports other tokens and "
        f"log-probs than those that it sampled: its scores of the finished text differ{place}"
    )


def _path(engine: TokenEngine) -> str:
    return str(getattr(engine, "path", engine.name))
