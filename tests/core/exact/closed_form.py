"""Updates of every row in closed form, in NumPy alone; shares no code with the package.

A case is a table over replies: reward, and per token the log-probs under theta, prox, mu and ref. The result is, per
reply and token, what multiplies d log theta in the gradient of the loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STOP = 2


def replies(longest: int = 3, vocab: int = 3) -> list[tuple[int, ...]]:
    """All replies that end with the stop token or at *longest*."""
    out: list[tuple[int, ...]] = []
    for length in range(1, longest + 1):
        every = itertools.product(range(vocab), repeat=length)
        out += [y for y in every if STOP not in y[:-1] and (y[-1] == STOP or length == longest)]
    return out


def multisets(probs: Sequence[float], size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Groups of *size* independent draws up to order, with their probabilities (they sum to 1)."""
    for chosen in itertools.combinations_with_replacement(range(len(probs)), size):
        ways = math.factorial(size)
        for i in set(chosen):
            ways //= math.factorial(chosen.count(i))
        yield chosen, ways * math.prod(probs[i] for i in chosen)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rewards [replies], and per reply the log-probs of its tokens under each policy."""

    rewards: Sequence[float]
    theta: Sequence[Array]
    prox: Sequence[Array]
    mu: Sequence[Array]
    ref: Sequence[Array]


def coefficients(name: str, case: Case, group: Sequence[int], longest: int) -> list[Array]:
    """Per member of *group*, what multiplies d log theta of its tokens in the gradient of the loss of the row
    *name*.
    """
    rewards = np.array([case.rewards[i] for i in group])
    size = len(group)
    constant = bool(np.ptp(rewards) < 1e-6)
    centred = np.zeros(size) if constant else rewards - rewards.mean()
    out = []
    for k, i in enumerate(group):
        t = len(case.theta[i])
        if name == "grpo":
            advantage = centred[k] / (np.sqrt(np.mean(centred**2)) + 1e-4)
            kl = 1 - np.exp(case.ref[i] - case.theta[i])
            out.append((clipped(case, i, advantage) + 0.04 * kl) / (size * t))
        elif name == "grpo+tis":
            advantage = centred[k] / (np.sqrt(np.mean(centred**2)) + 1e-4)
            weight = np.minimum(np.exp(case.prox[i] - case.mu[i]), 2.0)
            kl = 1 - np.exp(case.ref[i] - case.theta[i])
            out.append((weight * clipped(case, i, advantage) + 0.04 * kl) / sum(len(case.theta[j]) for j in group))
        elif name == "dr_grpo":
            out.append(clipped(case, i, centred[k]) / (size * longest))
        elif name == "dr_grpo+mu":
            out.append(clipped(case, i, centred[k], case.mu) / (size * longest))
        elif name == "rloo":
            others = 0.0 if constant else rewards[k] - np.delete(rewards, k).mean()
            out.append(np.full(t, -others / (size * longest)))
        elif name == "reinforce":
            out.append(np.full(t, -centred[k] / (size * longest)))
        elif name == "reinforce-raw":
            out.append(np.full(t, -rewards[k] / (size * longest)))
        else:
            raise ValueError(name)
    return out


def clipped(case: Case, i: int, advantage: float, anchor: Sequence[Array] | None = None) -> Array:
    """Derivative of -min(r A, clip(r, 0.8, 1.2) A) with respect to log theta, r = theta / prox."""
    ratio = np.exp(case.theta[i] - (anchor or case.prox)[i])
    moves = ratio <= 1.2 if advantage > 0 else ratio >= 0.8
    return -advantage * ratio * moves
