"""An evaluation as ``quintain eval --json`` prints it."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain.evaluation import Evaluation


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return one flat object: ``pass@1`` and the other estimates at the top, their intervals
    (95 %) by name.
    """
    estimates, reward, yardstick = evaluation.estimates(), evaluation.reward, evaluation.yardstick
    intervals = {name: [e.low, e.high] for name, e in estimates.items() if e}
    return {
        **{name: e.value if e else None for name, e in estimates.items()},
        "interval": intervals.get("pass@1"),
        "intervals": intervals,
        "reward": reward.value if reward else None,
        "yardstick": yardstick.value if yardstick else None,
        "yardstick_interval": [yardstick.low, yardstick.high] if yardstick else None,
        "yardstick_missing": evaluation.yardstick_missing,
        "environment": evaluation.environment,
        "split": evaluation.split,
        "engine": evaluation.engine,
        "tasks": len(evaluation.groups),
        "samples": evaluation.samples,
        "rollouts": len(evaluation.rollouts),
        "interrupted": evaluation.interrupted,
        "planned": evaluation.planned,
        "failed": sum(not r.valid for r in evaluation.rollouts),
        "terminations": terminations_of(evaluation),
        "failures": evaluation.reasons,
        "without_turn": evaluation.without_turn,
        "tokens": evaluation.tokens,
        "metrics": metrics_of(evaluation),
        "temperature": evaluation.sampling.temperature,
        "max_tokens": evaluation.sampling.max_tokens,
        "seed": evaluation.seed,
        "seconds": evaluation.seconds,
    }


def terminations_of(evaluation: Evaluation) -> dict[str, int]:
    """Count how many rollouts ended in which way, the most frequent first."""
    return dict(Counter(r.termination.kind.value for r in evaluation.rollouts).most_common())


def metrics_of(evaluation: Evaluation) -> dict[str, float]:
    """Return the average of what the environment reported, and of parts of the outcome, over the
    valid rollouts that have it.
    """
    scored = [
        (r.metrics, r.outcome.parts if r.outcome else {}) for r in evaluation.rollouts if r.valid
    ]
    named_scores = [{**metrics, **(parts if len(parts) > 1 else {})} for metrics, parts in scored]
    return {
        n: fmean([r[n] for r in named_scores if n in r])
        for n in sorted({n for r in named_scores for n in r})
    }
