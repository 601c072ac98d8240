"""Scores rollouts: by single-rollout rewards as each episode ends, by group rewards once the group is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import InfrastructureError, PolicyFault, RewardFault, UsageError
from ..interfaces.environment import Environment
from ..interfaces.reward import RewardContext, ScoreOrError, failure_of
from ..tracebacks import text_of
from ..types.rollout import AnyGroup, AnyRollout, Score, Termination, TerminationKind
from .own_task import in_own_task


async def score_rollout(
    environment: Environment[Any, Any], rollout: AnyRollout, context: RewardContext, retries: int = 0
) -> AnyRollout:
    """Score *rollout* by those of the environment's rewards that read no other sample."""
    (scored,) = await _scored(environment, [rollout], context, retries, grouped=False)
    return scored


async def score_group(
    environment: Environment[Any, Any], group: AnyGroup, context: RewardContext, retries: int = 0
) -> AnyGroup:
    """Score the valid samples of a complete group by the rewards that compare samples."""
    if not any(reward and reward.group for reward in (environment.reward, environment.shaping)):
        return group
    return replace(group, rollouts=await _scored(environment, group.rollouts, context, retries, grouped=True))


async def _scored(
    environment: Environment[Any, Any],
    rollouts: Sequence[AnyRollout],
    context: RewardContext,
    retries: int,
    *,
    grouped: bool,
) -> tuple[AnyRollout, ...]:
    """Copies of *rollouts* with the scores of the rewards that compare samples (*grouped*) or of those that do not.

    Outcome and shaping both see the rollout without the other's score. A rollout that the outcome reward fails to score
    is not passed to the shaping reward.
    """
    changes: list[dict[str, Any]] = [{} for _ in rollouts]
    for slot, reward in (("outcome", environment.reward), ("shaping", environment.shaping)):
        if reward is None or reward.group != grouped:
            continue
        judged: list[int] = []
        for i, rollout in enumerate(rollouts):
            termination = changes[i].get("termination", rollout.termination)
            if termination.early:  # there is no result to score, so the environment sets the score
                changes[i][slot] = Score(value=environment.early if slot == "outcome" else 0.0)
            elif not termination.ours:
                judged.append(i)
        outcomes: list[ScoreOrError] = []
        for _ in range(retries + 1 if judged else 0):
            try:
                score = partial(reward.score_all, [rollouts[i] for i in judged], context)
                who, task = f"reward {reward.name!r}", rollouts[0].task
                outcomes = await in_own_task(score, environment.limits, "reward_seconds", who, task)
            except UsageError:
                raise
            except BaseException as e:  # noqa: BLE001 - such as a cancellation by its own code
                outcomes = [failure_of(e, reward.name)] * len(judged)
            if not any(isinstance(o, InfrastructureError) for o in outcomes):
                break
        for i, scored in zip(judged, outcomes, strict=True):
            changes[i] |= _change(slot, scored, rollouts[i], environment.early)
    return tuple(r.replace(**change) if change else r for r, change in zip(rollouts, changes, strict=True))


def _change(slot: str, scored: ScoreOrError, rollout: AnyRollout, early: float) -> dict[str, Any]:
    """The fields of *rollout* to change after one reward: the score, or the termination for its error."""
    attempts, own = rollout.termination.attempts, sum(not t.player for t in rollout.turns)
    if isinstance(scored, Score) and len(scored.turns) > own:  # credit would not know which tokens they belong to
        scored = RewardFault(f"{len(scored.turns)} turn scores for {own} turns of the policy (`not turn.player`)")
    if isinstance(scored, Score):
        return {slot: scored}
    if isinstance(scored, PolicyFault):  # an answer that a working verifier cannot read is the policy's fault
        termination = Termination(TerminationKind.POLICY_FAULT, text_of(scored), attempts, early=True)
        return {"termination": termination, "outcome": Score(value=early), "shaping": Score()}
    ours = isinstance(scored, InfrastructureError)
    kind = TerminationKind.INFRASTRUCTURE_ERROR if ours else TerminationKind.REWARD_ERROR
    return {"termination": Termination(kind, text_of(scored), attempts), "outcome": None, "shaping": None}
