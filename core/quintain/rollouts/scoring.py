"""Scores for rollouts: rewards of a rollout as it ends, rewards of a group when it is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InfrastructureError, PolicyFault
from ..interfaces.environment import Environment
from ..interfaces.reward import Context, Outcome
from ..types.rollout import AnyGroup, AnyRollout, Ending, EndingKind, Score


async def score_rollout(
    environment: Environment[Any, Any], rollout: AnyRollout, context: Context, retries: int = 0
) -> AnyRollout:
    """Score *rollout* by those of the environment's rewards that need no other member."""
    (scored,) = await _scored(environment, [rollout], context, retries, grouped=False)
    return scored


async def score_group(
    environment: Environment[Any, Any], group: AnyGroup, context: Context, retries: int = 0
) -> AnyGroup:
    """Score the valid members of a complete group by the rewards that compare members."""
    return replace(group, rollouts=await _scored(environment, group.rollouts, context, retries, grouped=True))


async def rescore(
    environment: Environment[Any, Any], group: AnyGroup, services: Mapping[str, Any], step: int = 0
) -> AnyGroup:
    """Score stored rollouts again, all rewards anew."""
    context = Context(step=step, services=services)
    unscored = [r.but(verdict=None, shaping=None) for r in group.rollouts]
    rollouts = tuple([await score_rollout(environment, r, context) for r in unscored])
    return await score_group(environment, replace(group, rollouts=rollouts), context)


async def _scored(
    environment: Environment[Any, Any],
    rollouts: Sequence[AnyRollout],
    context: Context,
    retries: int,
    *,
    grouped: bool,
) -> tuple[AnyRollout, ...]:
    """The rollouts with the scores of the rewards that do, or do not, compare members; one copy of each.

    Both rewards see the rollout as the episode left it, without the other's score. A rollout that the verdict cannot
    score is not shown to the shaping.
    """
    changes: list[dict[str, Any]] = [{} for _ in rollouts]
    for slot, reward in (("verdict", environment.reward), ("shaping", environment.shaping)):
        if reward is None or reward.group != grouped:
            continue
        judged: list[int] = []
        for i, rollout in enumerate(rollouts):
            ending = changes[i].get("ending", rollout.ending)
            if ending.early:  # no evidence to judge: the environment sets the score
                changes[i][slot] = Score(value=environment.early if slot == "verdict" else 0.0)
            elif not ending.ours:
                judged.append(i)
        outcomes: list[Outcome] = []
        for _ in range(retries + 1 if judged else 0):
            outcomes = await reward.outcomes([rollouts[i] for i in judged], context)
            if not any(isinstance(o, InfrastructureError) for o in outcomes):
                break
        for i, outcome in zip(judged, outcomes, strict=True):
            changes[i] |= _change(slot, outcome, rollouts[i].ending.attempts, environment.early)
    return tuple(r.but(**change) if change else r for r, change in zip(rollouts, changes, strict=True))


def _change(slot: str, outcome: Outcome, attempts: int, early: float) -> dict[str, Any]:
    """What an outcome of scoring changes in the rollout."""
    if isinstance(outcome, Score):
        return {slot: outcome}
    if isinstance(outcome, PolicyFault):  # an answer that defeats a healthy verifier is the policy's fault
        ending = Ending(EndingKind.POLICY_FAULT, str(outcome), attempts, early=True)
        return {"ending": ending, "verdict": Score(value=early), "shaping": Score()}
    ours = isinstance(outcome, InfrastructureError)
    kind = EndingKind.INFRASTRUCTURE_ERROR if ours else EndingKind.REWARD_ERROR
    return {"ending": Ending(kind, str(outcome), attempts), "verdict": None, "shaping": None}
