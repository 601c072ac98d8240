"""Scores rollouts: by single-rollout rewards as each episode ends, by group rewards once the group is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InfrastructureError, PolicyFault
from ..interfaces.environment import Environment
from ..interfaces.reward import RewardContext, ScoreOrError
from ..types.rollout import AnyGroup, AnyRollout, Score, Termination, TerminationKind


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
    return replace(group, rollouts=await _scored(environment, group.rollouts, context, retries, grouped=True))


async def rescore(
    environment: Environment[Any, Any], group: AnyGroup, services: Mapping[str, Any], step: int = 0
) -> AnyGroup:
    """Score the stored rollouts of *group* again by all rewards of *environment*."""
    context = RewardContext(step=step, services=services)
    unscored = [r.replace(outcome=None, shaping=None) for r in group.rollouts]
    rollouts = tuple([await score_rollout(environment, r, context) for r in unscored])
    return await score_group(environment, replace(group, rollouts=rollouts), context)


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
            outcomes = await reward.score_all([rollouts[i] for i in judged], context)
            if not any(isinstance(o, InfrastructureError) for o in outcomes):
                break
        for i, scored in zip(judged, outcomes, strict=True):
            changes[i] |= _change(slot, scored, rollouts[i].termination.attempts, environment.early)
    return tuple(r.replace(**change) if change else r for r, change in zip(rollouts, changes, strict=True))


def _change(slot: str, scored: ScoreOrError, attempts: int, early: float) -> dict[str, Any]:
    """The fields of a rollout to change after one reward: the score, or the termination for its error."""
    if isinstance(scored, Score):
        return {slot: scored}
    if isinstance(scored, PolicyFault):  # an answer that a working verifier cannot read is the policy's fault
        termination = Termination(TerminationKind.POLICY_FAULT, str(scored), attempts, early=True)
        return {"termination": termination, "outcome": Score(value=early), "shaping": Score()}
    ours = isinstance(scored, InfrastructureError)
    kind = TerminationKind.INFRASTRUCTURE_ERROR if ours else TerminationKind.REWARD_ERROR
    return {"termination": Termination(kind, str(scored), attempts), "outcome": None, "shaping": None}
