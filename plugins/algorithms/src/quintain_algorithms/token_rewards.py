"""What single tokens of a sample were given, for advantages that credit a token with what comes after
it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quintain.errors import UsageError
from quintain.learning import Sample, Step

__all__ = ["check_order", "returns", "token_rewards", "turn_rewards"]


def returns(step: Step) -> Tensor:
    """Return the undiscounted return from each trained token on, [N], float64.

    A token's reward is minus its KL penalty where the KL is in the reward; turn scores come with
    the last token of their turn, the rest of the sample's total with its last token.
    """
    # Sample by sample: a sum over the batch would round as its total does, and samples of equal
    # reward would differ.
    gains = token_rewards(step)
    for part in gains.split([sample.tokens for sample in step.batch.samples]):
        part.copy_(part.flip(0).cumsum(0).flip(0))
    return gains


def token_rewards(step: Step) -> Tensor:
    """Return the reward of each trained token, as in `returns`, [N], float64.

    Raises:
        UsageError: as `check_order`, where tokens differ in their rewards.
    """
    if step.penalty is not None or any(one.turn_scores for one in step.batch.samples):
        check_order(step)
    sample = step.batch.sample_of_tokens
    rewards = torch.zeros(sample.shape[0], dtype=torch.float64)
    if step.penalty is not None:
        rewards -= step.penalty.double().cpu()
    position = 0
    for i, one in enumerate(step.batch.samples):
        extra = (
            math.fsum(step.penalty[position : position + one.tokens].tolist())
            if step.penalty is not None
            else 0.0
        )
        for count, score in turn_rewards(one, step.rewards[i] + extra):
            position += count
            if count:
                rewards[position - 1] += score
    return rewards


def check_order(step: Step) -> None:
    """Refuse samples whose turns lie in another order than that of time, for an advantage that
    credits a token with what comes after it.

    Raises:
        UsageError: conversations of one rollout overlap.
    """
    if any(one.overlapping for one in step.batch.samples):
        raise UsageError(
            "this advantage credits tokens with what comes after them, and conversations of one "
            "rollout overlap in time (a sub-agent between the turns of its caller): take an "
            'advantage of whole rollouts, such as that of algorithm = "grpo"'
        )


def turn_rewards(sample: Sample, reward: float) -> list[tuple[int, float]]:
    """Return the tokens and the score of each turn; what *reward* holds besides turn scores comes with the last.
    What a turn without tokens was given comes with the next that has some.
    """
    counts = [count for count in sample.turns if count] or [sample.tokens]
    scores = [0.0] * len(counts)
    turn = 0
    for count, score in zip(sample.turns or (sample.tokens,), sample.turn_scores, strict=False):
        scores[min(turn, len(scores) - 1)] += score
        turn += count > 0
    scores[-1] += reward - math.fsum(scores)
    return list(zip(counts, scores, strict=True))
