"""A reward on how likely the policy found its own tokens."""

from __future__ import annotations

import math
from typing import Any

from pydantic import NegativeFloat

from quintain import Rollout, reward
from quintain.errors import RewardFault


@reward(range=(-math.inf, 0))
def mean_log_prob(rollout: Rollout[Any, Any], *, floor: NegativeFloat = -10.0) -> float:
    """The mean log-prob of the sampled tokens, in nats: a confidence of the policy in its own
    answer::

        max(floor, sum of log mu(token) / tokens)

    Bounds: *floor* and 0. The log-probs are the engine's, at the sampling temperature and before
    top-p and the like, of all turns of the policy's own player. Their exponential is the inverse of
    the perplexity. In expectation over the sampled token each log-prob is the negative entropy of
    its distribution, the reward of EM-RL (Agarwal et al. 2025, arXiv:2505.15134).

    This is not self-certainty (Kang et al. 2025, arXiv:2502.18581; the reward of Intuitor, Zhao et
    al. 2025, arXiv:2505.19590), the mean of KL(uniform || mu) over tokens: that needs the whole
    next-token distribution, and engines return the log-prob of the sampled token only.

    A policy also raises it by repeating itself: combine it with `repetition` and a small weight.

    Args:
        floor: the lowest value; that of an episode without tokens, too.

    Raises:
        RewardFault: the policy's turns have no log-probs, as those of a text engine or a control;
            or *floor* is not below 0.
    """
    if not floor < 0:
        raise RewardFault(f"mean_log_prob: floor is {floor!r}; expected a number below 0")
    transcript = rollout.transcripts.get("")
    sequences = transcript.sequences() if transcript else []
    logps = [
        logp for s in sequences for logp, sampled in zip(s.logps, s.mask, strict=True) if sampled
    ]
    if not logps and any(turn.text for turn in rollout.turns if not turn.player):
        raise RewardFault(
            f"mean_log_prob: task {rollout.task.id} has turns without log-probs; use a token "
            "engine, or leave the reward out for engines that answer with text"
        )
    return min(0.0, max(floor, math.fsum(logps) / len(logps))) if logps else floor
