"""The loss of a micro-batch: a plain weighted sum of terms whose weights were fixed before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import UsageError
from ..interfaces.algorithm import Row
from .pieces.objectives import kl_terms
from .terms import Terms


@dataclass(frozen=True, kw_only=True)
class WeightedSum:
    """A part of the step's loss.

    Attributes:
        loss: sum_k c_k w_k term_k, plus the KL terms, a scalar with gradient.
        diagnostics: what the objective tells of itself.
        correction: the weights w, [N] or [S].
    """

    loss: Tensor
    diagnostics: Mapping[str, Tensor]
    correction: Tensor


def weighted_sum(row: Row, t: Terms, weight_N: Tensor) -> WeightedSum:
    """Sum the objective's terms, each with what its tokens weigh together and the correction's weight.

    The KL term, where it is in the loss, is a term of each token and is not corrected.

    Args:
        weight_N: c of each token, from the aggregation over the whole optimizer step.

    Raises:
        UsageError: the objective or the correction returned another shape than its level says.
    """
    out = row.objective(t)
    terms, diagnostics = out if isinstance(out, tuple) else (out, {})
    weight = _of_level(t, weight_N, row.objective.level)
    _check(row.objective, terms, weight)
    fix = row.correction(t).detach()
    _check(row.correction, fix, weight_N if row.correction.level == "token" else t.sample_sum(weight_N))
    if row.correction.level == "sequence" and row.objective.level == "token":
        loss = (weight * t.spread(fix) * terms).sum()
    elif not row.corrected:
        loss = (weight * terms).sum()
    else:
        loss = (weight * fix * terms).sum()
    if row.kl.in_loss:
        loss = loss + row.kl.coefficient * (weight_N * kl_terms(t, row.kl)).sum()
    return WeightedSum(loss=loss, diagnostics=diagnostics, correction=fix)


def _of_level(t: Terms, weight_N: Tensor, level: str) -> Tensor:
    if level == "token":
        return weight_N
    weight_S = t.sample_sum(weight_N)
    return weight_S if level == "sequence" else t.group_sum(weight_S)


def _check(piece: object, got: Tensor, like: Tensor) -> None:
    if got.shape != like.shape:
        raise UsageError(
            f"{piece!r} must return {list(like.shape)} values here, one per term and unreduced; "
            f"it returned {list(got.shape)}"
        )
