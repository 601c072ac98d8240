"""Generalised advantage estimation: rewards of single tokens, and what a critic expected of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintain import advantage, need
from quintain.errors import UsageError
from quintain.learning import Step, are_equal

from ..token_rewards import check_order, token_rewards
from .critic import Critic

WithMetrics = tuple[tuple[Tensor, dict[str, float]], int]


@advantage
def gae(
    step: Step,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    clamp: bool = True,
    whiten: bool = False,
    warmup: int = 0,
    critic: Critic = need(),
    state: Any = None,
) -> WithMetrics:
    """A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t over the trained
    tokens of a sample (Schulman et al. 2015, 1506.02438, equation 16). The critic then learns the
    returns A_t + V_t.

    The reward of a token is what its turn was given if it is the turn's last, the rest of the total
    if it is the sample's last, and less its KL term where the algorithm has that in the reward.
    What was not sampled (prompts, tool results) is skipped: the token before it is followed by the
    one after it, as in verl and AReaL (OpenRLHF decays over it, slime and SkyRL walk over it; all
    agree where gamma = lam = 1). Nothing follows the last token, also where a limit cut the sample
    short: a truncated answer is worth what it was given, without a bootstrapped value.

    Args:
        gamma: discount per token.
        lam: 1 compares the return with the value; smaller trusts the critic more.
        clamp: count the KL term of a token only where it is positive, so where theta gives the
            token more probability than ref does (Dubois et al. 2023, AlpacaFarm, 2305.14387,
            ``_shape_reward``). It keeps a policy from being paid for tokens that it made unlikely;
            the sum is then no estimate of the KL.
        whiten: divide what is above the mean over all tokens of the batch by its spread (ddof 0,
            epsilon 1e-8; exactly 0 where it is constant). TRL and AlpacaFarm always do, verl with
            ddof 1.
        warmup: steps in which the critic alone learns: all advantages are 0 then (VC-PPO,
            2503.01491); a KL term in the loss would still move the policy. ``critic.warmup`` is 1
            in these steps.
    """
    if not 0 <= gamma <= 1 or not 0 <= lam <= 1:
        raise UsageError(f"advantage.gae: gamma {gamma}, lam {lam}; expected numbers from 0 to 1")
    check_order(step)
    values_N = critic.values(step.batch).double()
    rewards_N = token_rewards(step)
    if clamp and step.penalty is not None:
        rewards_N = rewards_N + step.penalty.double().cpu().clamp(max=0)
    advantages_N = estimates(
        rewards_N, values_N, [s.tokens for s in step.batch.samples], gamma=gamma, lam=lam
    )
    metrics = critic.fit(step.batch, values_N, advantages_N + values_N)
    done = int(state or 0)
    if done < warmup:
        advantages_N, metrics = torch.zeros_like(advantages_N), {**metrics, "critic.warmup": 1.0}
    elif whiten:
        advantages_N = whitened(advantages_N)
    return (advantages_N, metrics), done + 1


def estimates(
    rewards_N: Tensor, values_N: Tensor, lengths: Sequence[int], *, gamma: float, lam: float
) -> Tensor:
    """Return the advantages of tokens that lie flat, sample after sample of *lengths* tokens,
    float64 [N].
    """
    rewards, values = rewards_N.tolist(), values_N.tolist()
    out = [0.0] * len(rewards)
    end = 0
    for length in lengths:
        start, end = end, end + length
        ahead = following = 0.0
        for t in reversed(range(start, end)):
            delta = rewards[t] + gamma * following - values[t]
            out[t] = ahead = delta + gamma * lam * ahead
            following = values[t]
    return torch.tensor(out, dtype=torch.float64)


def whitened(values_N: Tensor) -> Tensor:
    """Return (x - mean) / (std + 1e-8) over all tokens, ddof 0; exactly 0 where they are all the
    same.
    """
    if are_equal(values_N.tolist()):
        return torch.zeros_like(values_N)
    centred = values_N - values_N.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)
