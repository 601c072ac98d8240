"""Objectives on pairs: within each group, a sample of higher reward is preferred to one of lower
reward.

The advantage carries the ranking and nothing else: any that keeps the order of rewards in a group
will do. A term is the mean over the pairs of one group; a group without pairs (equal rewards, a
single sample) gives exactly 0. Log-probs are those at the temperature of sampling, under theta and
ref alike.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from quintain import Algorithm, objective
from quintain.errors import UsageError
from quintain.learning import SPREAD_TOLERANCE, LossInputs

Choice = Literal["all", "best_worst"]
Found = tuple[Tensor, dict[str, Tensor]]

ROUNDING = 4 * torch.finfo(torch.float32).eps
"""Rounding error of an advantage, as a share of the largest of its group."""


def fits(algorithm: Algorithm) -> None:
    """Refuse a KL term in the reward, by which answers of equal reward would be ranked.

    Raises:
        UsageError: there is one.
    """
    if algorithm.kl.in_reward:
        raise UsageError(
            f"algorithm {algorithm.name!r}: with the KL in the reward {algorithm.objective!r} "
            "would rank answers of equal reward by their KL; its own reference term holds the "
            "policy already: set kl.coefficient = 0"
        )


@objective(level="group", reads=("ref",), idle=True, fits=fits)
def dpo(
    t: LossInputs, *, beta: float = 0.1, pairs: Choice = "all", tolerance: float = SPREAD_TOLERANCE
) -> Found:
    """-log sigmoid(beta (h_w - h_l)), h = sum over an answer's tokens of log theta - log ref
    (Rafailov et al. 2023, 2305.18290, equation 7).

    Args:
        beta: 0.1 as in TRL, OpenRLHF and AReaL (NeMo-RL: 0.05). It belongs to sums; see `dpo_norm`.
        pairs: ``all`` of a group whose rewards differ, or its ``best_worst`` alone (the first of
            each, where several share a reward), as for the on-policy data of SimPO.
        tolerance: rewards that differ by no more than this, or than the rounding of the largest
            advantage of their group, are equal.
    """
    return _over_pairs(t, t.sample_sum(log_ratio(t)), beta, 0.0, pairs, tolerance)


@objective(level="group", reads=("ref",), idle=True, fits=fits)
def dpo_norm(
    t: LossInputs, *, beta: float = 5.0, pairs: Choice = "all", tolerance: float = SPREAD_TOLERANCE
) -> Found:
    """`dpo` with the mean over each answer's tokens in place of the sum: length-normalised DPO
    (Lambert et al. 2024, "Tulu 3", 2411.15124, section 5.1).

    Args:
        beta: 5 as in open-instruct; on means it weighs as 0.1 does on sums of about 50 tokens.
        pairs, tolerance: as for `dpo`.
    """
    return _over_pairs(t, t.sample_mean(log_ratio(t)), beta, 0.0, pairs, tolerance)


@objective(level="group", reads=(), idle=True, fits=fits)
def simpo(
    t: LossInputs,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
    pairs: Choice = "all",
    tolerance: float = SPREAD_TOLERANCE,
) -> Found:
    """-log sigmoid(beta (m_w - m_l) - gamma), m = mean over an answer's tokens of log theta; no
    reference (Meng et al. 2024, 2405.14734, equation 6).

    Args:
        beta: 2 to 2.5 in the paper's first version, 10 in its later ones.
        gamma: target margin of the reward beta m, absolute. The authors' code sets gamma / beta and
            recommends to start at 0.5, as here; open-instruct takes 0.3, TRL an absolute 0.5.
        pairs, tolerance: as for `dpo`.
    """
    return _over_pairs(t, t.sample_mean(t.logp), beta, gamma, pairs, tolerance)


def log_ratio(t: LossInputs) -> Tensor:
    """Return log theta - log ref of each token, [N]."""
    assert t.ref_logp is not None
    return t.logp - t.ref_logp


def _over_pairs(
    t: LossInputs, score_S: Tensor, beta: float, gamma: float, pairs: Choice, tolerance: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of -log sigmoid(beta (s_w - s_l) - gamma) over the pairs of each group, [G].

    Told: ``pairs`` of each group; per pair ``pair_margin`` = beta (s_w - s_l), the difference of
    implicit rewards, and ``pair_accuracy``, whether it is positive.
    """
    winner, loser = ranked(t, pairs, tolerance)
    margin_P = beta * (score_S[winner] - score_S[loser])
    owner = t.group[winner]
    none = t.group_sum(torch.zeros_like(score_S))
    count_G = none.detach().index_add(0, owner, torch.ones_like(margin_P.detach()))
    total_G = none.index_add(0, owner, -logsigmoid(margin_P - gamma))
    metrics = {
        "pairs": count_G,
        "pair_margin": margin_P.detach(),
        "pair_accuracy": (margin_P > 0).detach(),
    }
    return total_G / count_G.clamp(min=1), metrics


def ranked(t: LossInputs, pairs: Choice, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the better and the worse sample of each pair, [P] each.

    Raises:
        UsageError: another choice of pairs.
    """
    value_S = t.sample_max(t.advantage.detach())  # all tokens of a sample have the same
    if pairs == "all":
        winner, loser = (t.group[:, None] == t.group[None, :]).nonzero(as_tuple=True)
    elif pairs == "best_worst":
        winner, loser = _first(t, value_S), _first(t, -value_S)
    else:
        raise UsageError(f"pairs is {pairs!r}; expected 'all' or 'best_worst'")
    better, worse = value_S[winner], value_S[loser]
    rounding_P = ROUNDING * _largest(t, value_S.abs())[t.group[winner]]
    apart = better - worse > rounding_P.clamp(min=tolerance)
    return winner[apart], loser[apart]


def _first(t: LossInputs, value_S: Tensor) -> Tensor:
    """Return per group the first sample of its largest value, [G]."""
    size = value_S.shape[0]
    largest_G = _largest(t, value_S)
    place_S = torch.arange(size, device=value_S.device)
    place_S = torch.where(value_S == largest_G[t.group], place_S, size)
    return place_S.new_full(largest_G.shape, size).scatter_reduce(0, t.group, place_S, "amin")


def _largest(t: LossInputs, value_S: Tensor) -> Tensor:
    """Return the largest value of each group, [G]."""
    groups = t.group_sum(value_S).shape[0]
    return value_S.new_full((groups,), -torch.inf).scatter_reduce(0, t.group, value_S, "amax")
