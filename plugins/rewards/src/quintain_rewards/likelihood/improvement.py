"""VR-CLI: how much a plan improves the perplexity of the text that came next, and rewards for that.

Gurung and Lapata 2025, "Learning to Reason for Long-Form Story Generation" (arXiv:2503.22828),
section 3: verifiable rewards via completion likelihood improvement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from quintain.errors import UsageError

from .text import NoiseFloor, TextScore

PUBLISHED_EDGES = (0.05, 1.0, 2.0)
"""Improvements, in percent, from which on the authors' code pays the next of `LEVELS`."""

LEVELS = (0.5, 0.9, 1.0)

NOISES = 2.0
"""Noise floors that an improvement has to exceed before it counts: baseline and plan both have
one.
"""


def improvement(planned: TextScore, baseline: TextScore) -> float:
    """Return the improvement I in percent::

        I = (1 - PPL(y | x, a) / PPL(y | x)) * 100,    PPL = exp(mean negative log-prob per token of y)

    Below 100; negative where the plan a makes the text y less probable.

    Raises:
        ValueError: the scores are not of the same number of tokens, so that they are not of the
            same text.
    """
    if len(planned.logprobs) != len(baseline.logprobs):
        raise ValueError(
            f"scores of {len(planned.logprobs)} and {len(baseline.logprobs)} tokens; expected one "
            f"text, scored twice"
        )
    return -100 * math.expm1(min(700.0, baseline.mean - planned.mean))


def threshold_reward(
    percent: float, *, edges: Sequence[float] = PUBLISHED_EDGES, noise: NoiseFloor | None = None
) -> float:
    """Return 0 below the first edge, then 0.5, 0.9, and 1 from the last edge on.

    Args:
        percent: the improvement.
        edges: three rising improvements in percent.
        noise: of the scorer. An edge below two noise floors is raised to that, so that rounding
            never earns; ``None`` leaves the edges as they are.

    Raises:
        UsageError: there are not three edges, or they do not rise from 0 on.
    """
    if len(edges) != len(LEVELS) or not 0 <= edges[0] <= edges[1] <= edges[2]:
        raise UsageError(
            f"edges {tuple(edges)!r}: expected three rising percentages, such as {PUBLISHED_EDGES}"
        )
    least = NOISES * noise.improvement if noise else 0.0
    return max(
        (level for edge, level in zip(edges, LEVELS, strict=True) if percent >= max(edge, least)),
        default=0.0,
    )
