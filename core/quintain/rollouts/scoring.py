"""Scores for rollouts: rewards of a rollout as it ends, rewards of a group when it is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import EpisodeError, InfrastructureError, PolicyFault
from ..interfaces.environment import Environment
from ..interfaces.reward import Context, Outcome, Reward
from ..types.rollout import Ending, EndingKind, Group, Rollout, Score

AnyRollout = Rollout[Any, Any]


async def score_rollout(
    environment: Environment[Any, Any], rollout: AnyRollout, context: Context, retries: int = 0
) -> AnyRollout:
    """Score *rollout* by those of the environment's rewards that need no other member."""
    for slot in ("verdict", "shaping"):
        term = _reward(environment, slot)
        if term is not None and not term.group and rollout.valid:
            (rollout,) = await _scored([rollout], term, slot, environment, context, retries)
    return rollout


async def score_group(
    environment: Environment[Any, Any], group: Group[Any, Any], context: Context, retries: int = 0
) -> Group[Any, Any]:
    """Score the valid members of a complete group by the rewards that compare members."""
    for slot in ("verdict", "shaping"):
        term = _reward(environment, slot)
        if term is not None and term.group:
            valid = list(group.valid)
            done = {r.member: r for r in await _scored(valid, term, slot, environment, context, retries)}
            group = group.map(lambda r, done=done: done.get(r.member, r))  # type: ignore[misc]
    return group


async def rescore(
    environment: Environment[Any, Any], group: Group[Any, Any], services: Mapping[str, Any], step: int = 0
) -> Group[Any, Any]:
    """Score stored rollouts again, all rewards anew."""
    context = Context(step=step, services=services)
    fresh = [await score_rollout(environment, r.but(verdict=None, shaping=None), context) for r in group.rollouts]
    by_member = {r.member: r for r in fresh}
    return await score_group(environment, group.map(lambda r: by_member[r.member]), context)


def _reward(environment: Environment[Any, Any], slot: str) -> Reward | None:
    return environment.reward if slot == "verdict" else environment.shaping


async def _scored(
    rollouts: Sequence[AnyRollout],
    term: Reward,
    slot: str,
    environment: Environment[Any, Any],
    context: Context,
    retries: int,
) -> list[AnyRollout]:
    # An episode that the policy broke off left no evidence to judge: the environment says what that is worth.
    early = {r.member: Score(value=environment.early if slot == "verdict" else 0.0) for r in rollouts if r.ending.early}
    judged = [r for r in rollouts if not r.ending.early]
    outcomes = await term.outcomes(judged, context) if judged else []
    for _ in range(retries):
        if not any(isinstance(o, InfrastructureError) for o in outcomes):
            break
        outcomes = await term.outcomes(judged, context)
    by_member: dict[int, Outcome] = {**early, **{r.member: o for r, o in zip(judged, outcomes, strict=True)}}
    return [_with(r, slot, by_member[r.member], environment) for r in rollouts]


def _with(rollout: AnyRollout, slot: str, outcome: Outcome, environment: Environment[Any, Any]) -> AnyRollout:
    if isinstance(outcome, Score):
        return rollout.but(**{slot: outcome})
    if isinstance(outcome, PolicyFault):
        broken = Score(value=environment.early)
        return rollout.but(ending=ending_of(outcome, rollout.ending.attempts), verdict=broken, shaping=Score())
    return rollout.but(ending=ending_of(outcome, rollout.ending.attempts), verdict=None, shaping=None)


def ending_of(error: EpisodeError, attempts: int = 1) -> Ending:
    """The ending that a failure of scoring gives; an answer that defeats a healthy verifier is the policy's fault."""
    if isinstance(error, InfrastructureError):
        return Ending(EndingKind.INFRASTRUCTURE_ERROR, str(error), attempts)
    if isinstance(error, PolicyFault):
        return Ending(EndingKind.POLICY_FAULT, str(error), attempts, early=True)
    return Ending(EndingKind.REWARD_ERROR, str(error), attempts)
