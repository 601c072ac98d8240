"""Two replies to each of many prompts, compared in both orders: who wins, and what the order and
the length decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from quintain import InfrastructureError

from .service import JudgeService

Z = 1.96
"""Standard errors of a 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class ReplyPair:
    """Two replies to *prompt* that are compared by *criteria*."""

    prompt: Any
    a: str
    b: str
    criteria: tuple[str, ...]


@dataclass(kw_only=True)
class Measured:
    """Measures by name, each with its value, its rows and, for shares, a 95 % interval; one without
    rows is absent.
    """

    measures: dict[str, dict[str, float]] = field(default_factory=dict)

    def share(self, name: str, values: Sequence[float]) -> None:
        """Add the mean of *values* in [0, 1] with Wilson's interval."""
        if not values:
            return
        n, p = len(values), fmean(values)
        centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
        half = Z / (1 + Z**2 / n) * (p * (1 - p) / n + Z**2 / (4 * n**2)) ** 0.5
        self.measures[name] = {
            "value": p,
            "low": max(0.0, centre - half),
            "high": min(1.0, centre + half),
            "rows": n,
        }


@dataclass(kw_only=True)
class Comparison(Measured):
    """What a judge says of pairs, from the side of a.

    The measures: ``win_rate`` (a tie is half), ``same_in_both_orders`` and
    ``first_wins_where_order_decides`` (position bias: a fair judge has 1, and 0.5 where the order
    decides), ``longer_wins`` (length bias).

    Attributes:
        values: per pair 1, 0.5 or 0; ``None`` where there is no verdict.
        failures: why, by the number of the pair. Such a pair counts in no measure.
    """

    values: list[float | None] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of pairs by what came of them."""
        names = {1.0: "wins", 0.5: "ties", 0.0: "losses", None: "failed"}
        return {name: sum(v == value for v in self.values) for value, name in names.items()}


async def compare(
    judge: JudgeService, pairs: Sequence[ReplyPair], on_pair: Callable[[], object] = lambda: None
) -> Comparison:
    """Judge each pair in both orders. A verdict that changes with the order is a tie; no verdict is
    no loss.
    """

    async def verdict(pair: ReplyPair) -> tuple[float, float] | InfrastructureError:
        try:
            if (known := judge.decided(pair.a, pair.b)) is not None:
                return known, known
            return await in_both_orders(judge, pair.prompt, pair.a, pair.b, pair.criteria)
        except InfrastructureError as e:
            return e
        finally:
            on_pair()

    verdicts = await asyncio.gather(*map(verdict, pairs))
    read = [(pair, v) for pair, v in zip(pairs, verdicts, strict=True) if isinstance(v, tuple)]
    result = Comparison(
        values=[settled(v) if isinstance(v, tuple) else None for v in verdicts],
        failures={i: str(v) for i, v in enumerate(verdicts) if isinstance(v, InfrastructureError)},
    )
    result.share("win_rate", [settled(v) for _, v in read])
    position_bias(result, "", [v for _, v in read])
    uneven = [
        (pair, settled(v)) for pair, v in read if len(pair.a) != len(pair.b) and settled(v) != 0.5
    ]
    result.share(
        "longer_wins",
        [float((value > 0.5) == (len(pair.a) > len(pair.b))) for pair, value in uneven],
    )
    return result


async def in_both_orders(
    judge: JudgeService, prompt: Any, a: str, b: str, criteria: Sequence[str]
) -> tuple[float, float]:
    """Return the value of *a*, 1, 0.5 or 0, in the first and in the second place, without the gate.

    Raises:
        InfrastructureError: one of the two has no verdict.
    """
    here, there = await asyncio.gather(
        judge.in_order(prompt, a, b, criteria), judge.in_order(prompt, b, a, criteria)
    )
    return here, 1 - there


def settled(verdict: tuple[float, float]) -> float:
    """Return one value of those of both orders: a tie where the order decides."""
    return verdict[0] if verdict[0] == verdict[1] else 0.5


def position_bias(result: Measured, prefix: str, verdicts: Sequence[tuple[float, float]]) -> None:
    """Add how often the two orders agree, and how often the first reply wins where they do not."""
    result.share(f"{prefix}same_in_both_orders", [float(here == there) for here, there in verdicts])
    # both are values of the same reply
    moved = [float(here > there) for here, there in verdicts if here != there]
    result.share(f"{prefix}first_wins_where_order_decides", moved)
