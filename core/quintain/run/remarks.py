"""What a run says about its settings before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interfaces.environment import Environment
from ..recipe.advice import unreachable
from ..recipe.plan import RunPlan


def remarks(plan: RunPlan, environments: Sequence[Environment[Any, Any]]) -> list[str]:
    """Name proxies without a yardstick, and settings without the effect that their names promise.

    Args:
        environments: of *plan*, with their services, which decide their limits and rewards.
    """
    notes = [
        f"environment {type(e).__name__}: its reward {e.reward.name} is a proxy without a "
        'yardstick; set yardstick = "..." under [[environments]] to a score that does not train '
        "(docs/judged-rewards.md#yardsticks)"
        for e in environments
        if e.reward.proxy and e.yardstick is None
    ]
    every, measured = plan.saving.every, plan.evaluation.every
    if every and measured and every % measured:
        notes.append(
            f"checkpoints are saved each {every} steps and measured each {measured}: only those of "
            "steps that have both can be the best; set checkpoint.every to a multiple of "
            "evaluation.every"
        )
    algorithm = plan.algorithm
    longest = plan.rollouts.max_tokens
    limits = [e.limits.tokens for e in environments if e.limits.tokens is not None]
    shortest = min(limits, default=longest)
    if algorithm.overlong and shortest < longest:
        notes.append(
            f"{algorithm.name} punishes turns of more than "
            f"{longest * (1 - algorithm.overlong):,.0f} of {longest:,} tokens "
            "(sampling.max_tokens), but an environment stops episodes at "
            f"{shortest:,} (limits.tokens); lower sampling.max_tokens to that limit"
        )
    budget = algorithm.plan.thinking_budget
    if budget is not None and budget.min_tokens >= longest:
        notes.append(
            f"{algorithm.name} interrupts a turn after {budget.min_tokens:,} to "
            f"{budget.max_tokens:,} tokens, but sampling.max_tokens is {longest:,}, so it never "
            "does; set algorithm.args.plan.thinking_budget to fewer tokens"
        )
    return [*notes, *unreachable(plan, environments), *plan.notes]
