"""An evaluation as ``quintain eval --json`` prints it."""

from __future__ import annotations

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
        "terminations": evaluation.terminations,
        "failures": evaluation.reasons,
        "without_turn": evaluation.without_turn,
        "tokens": evaluation.tokens,
        "metrics": evaluation.metrics,
        "temperature": evaluation.sampling.temperature,
        "max_tokens": evaluation.sampling.max_tokens,
        "seed": evaluation.seed,
        "seconds": evaluation.seconds,
    }
