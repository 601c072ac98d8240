"""Scores rollouts: by single-rollout rewards as each episode ends, by group rewards once the group
is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import InfrastructureError, PolicyFault, PolicyTimeout, RewardFault, UsageError
from ..interfaces.environment import Environment
from ..interfaces.reward import Reward, RewardContext, ScoreOrError, failure_of
from ..tracebacks import text_of
from ..types.rollout import AnyGroup, AnyRollout, Score, Termination, TerminationKind
from .own_task import in_own_task
from .spans import Span


async def score_rollout(
    environment: Environment[Any, Any],
    rollout: AnyRollout,
    context: RewardContext,
    retries: int = 0,
) -> AnyRollout:
    """Score *rollout* by those of the environment's rewards that read no other sample."""
    (scored,) = await _scored(environment, [rollout], context, retries, grouped=False)
    return scored


async def score_group(
    environment: Environment[Any, Any], group: AnyGroup, context: RewardContext, retries: int = 0
) -> AnyGroup:
    """Score the valid samples of a complete group by the rewards that compare samples."""
    rollouts = await _scored(environment, group.rollouts, context, retries, grouped=True)
    return replace(group, rollouts=rollouts)


async def _scored(
    environment: Environment[Any, Any],
    rollouts: Sequence[AnyRollout],
    context: RewardContext,
    retries: int,
    *,
    grouped: bool,
) -> tuple[AnyRollout, ...]:
    """Return copies of *rollouts* with the scores of the rewards that compare samples (*grouped*)
    or of those that do not.

    Each reward sees the rollout without the others' scores. A rollout that the outcome reward fails
    to score is not passed to the others. A yardstick that fails is missing from the rollout, which
    trains all the same.
    """
    changes: list[dict[str, Any]] = [{} for _ in rollouts]
    rewards = {
        "outcome": environment.reward,
        "shaping": environment.shaping,
        "yardstick": environment.yardstick,
    }  # by the field of a rollout that the score goes to
    for slot, reward in rewards.items():
        if reward is None or reward.group != grouped:
            continue
        judged: list[int] = []
        for i, rollout in enumerate(rollouts):
            # As the rewards before this one left it: what failed there is not asked again.
            termination = changes[i].get("termination", rollout.termination)
            if termination.early:  # there is no result to score, so the environment sets the score
                changes[i][slot] = Score(value=environment.early if slot == "outcome" else 0.0)
            elif not termination.ours:
                judged.append(i)
        if not judged:
            continue
        given = [rollouts[i] for i in judged]
        outcomes = await _outcomes(environment, reward, given, context, retries)
        for i, scored in zip(judged, outcomes, strict=True):
            changes[i] |= _change(slot, scored, rollouts[i], environment.early)
    return tuple(
        rollout.replace(**change) if change else rollout
        for rollout, change in zip(rollouts, changes, strict=True)
    )


async def _outcomes(
    environment: Environment[Any, Any],
    reward: Reward,
    rollouts: Sequence[AnyRollout],
    context: RewardContext,
    retries: int,
) -> list[ScoreOrError]:
    """Return what *reward* gives each rollout, a score or why there is none; it is asked again
    where its infrastructure failed.
    """
    outcomes: list[ScoreOrError] = []
    for _ in range(retries + 1):
        try:
            score = partial(reward.score_all, rollouts, context)
            code_name = f"reward {reward.name!r}"
            with Span("grade", reward=reward.name, rollouts=len(rollouts)):
                outcomes = await in_own_task(
                    score, environment.limits, "reward_seconds", code_name, rollouts[0].task
                )
        except UsageError:
            raise
        except BaseException as e:  # noqa: BLE001 - such as a cancellation by its own code
            outcomes = [failure_of(e, reward.name)] * len(rollouts)
        if not any(isinstance(outcome, InfrastructureError) for outcome in outcomes):
            break
    return outcomes


def termination_of(fault: PolicyFault) -> Termination:
    """Return how an episode ends by *fault*, which the environment or a reward raised."""
    late = isinstance(fault, PolicyTimeout)
    kind = TerminationKind.POLICY_TIMEOUT if late else TerminationKind.POLICY_FAULT
    return Termination(kind, text_of(fault), early=True)


def _change(slot: str, scored: ScoreOrError, rollout: AnyRollout, early: float) -> dict[str, Any]:
    """Return the fields of *rollout* to change after one reward: the score, or the termination for
    its error.
    """
    turns = [t for t in rollout.turns if not t.player]
    known = sum(not t.summary for t in turns)  # to the environment
    # credit would not know which tokens they belong to
    if isinstance(scored, Score) and known < len(scored.turns) != len(turns):
        scored = RewardFault(
            f"{len(scored.turns)} turn scores for {known} turns of the policy (`not turn.player`)"
        )
    if isinstance(scored, Score):
        return {slot: scored.spread(turns)}
    if slot == "yardstick":
        if isinstance(scored, PolicyFault):
            return {slot: Score(value=0.0, reason=text_of(scored))}
        return {}
    attempts = rollout.termination.attempts
    # an answer that a working verifier cannot read is the policy's fault
    if isinstance(scored, PolicyFault):
        termination = replace(termination_of(scored), attempts=attempts)
        return {"termination": termination, "outcome": Score(value=early), "shaping": Score()}
    kind = (
        TerminationKind.INFRASTRUCTURE_ERROR
        if isinstance(scored, InfrastructureError)
        else TerminationKind.REWARD_ERROR
    )
    return {
        "termination": Termination(kind, text_of(scored), attempts),
        "outcome": None,
        "shaping": None,
    }
