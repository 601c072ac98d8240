"""Self-certainty: how far the policy's next-token distributions are from uniform, as a reward
without an answer.
"""

from __future__ import annotations

import math
from typing import Any

from quintain import Rollout, need, reward
from quintain.errors import RewardFault

from .text import Pair, TextLikelihood


@reward(range=(0, math.inf), proxy=True)
async def self_certainty(rollout: Rollout[Any, Any], *, scorer: TextLikelihood = need()) -> float:
    """The mean over the sampled tokens of KL(uniform || p), in nats, p the next-token distribution
    of *scorer*.

    The reward of Intuitor (Zhao et al. 2025, arXiv:2505.19590), which needs neither answer nor
    judge. With the service ``current-policy`` it is the policy's own certainty, as published; with
    ``frozen-policy`` that of its start. The scorer reads the tokens of the policy, so both must
    have one tokenizer. All turns of the policy's own player count; an episode without tokens has 0.

    Raises:
        RewardFault: the policy's turns have no tokens, as those of a text engine or a control.
        UsageError: *scorer* gives no distributions.
    """
    transcript = rollout.transcripts.get("")
    sequences = [s for s in transcript.sequences() if any(s.mask)] if transcript else []
    if not sequences and any(turn.text for turn in rollout.turns if not turn.player):
        raise RewardFault(
            f"self_certainty: task {rollout.task.id} has turns without tokens; use a token engine, "
            "or leave the reward out for engines that answer with text"
        )
    rows = await scorer.certainty([Pair(tuple(s.ids[:1]), tuple(s.ids[1:])) for s in sequences])
    values = [
        v
        for s, row in zip(sequences, rows, strict=True)
        for v, trained in zip(row, s.mask[1:], strict=True)
        if trained
    ]
    return max(0.0, math.fsum(values) / len(values)) if values else 0.0
