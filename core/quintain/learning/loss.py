"""The loss of an optimizer step: a plain weighted sum of terms, part by part, whose weights were fixed before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..errors import UsageError
from ..interfaces.algorithm import Row
from ..interfaces.pieces import POLICIES
from ..models.head import Statistics
from .meter import Meter
from .microbatch import MicroBatch
from .pieces.objectives import kl_terms
from .scorer import FrozenPolicies, Scorer
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


@dataclass(frozen=True, kw_only=True)
class MinibatchLoss:
    """The loss of one minibatch, as the sum of its micro-batches' parts.

    Attributes:
        row: the method.
        scorer: computes the statistics under theta.
        policies: mu, prox and ref; a first pass completes prox in them.
        temperature: of the policy.
        advantage_N, weight_N: advantage and aggregation weight of each trained token of the batch.
        meter: takes down the metrics.
        first: no update of the step came before, so theta is prox.
    """

    row: Row
    scorer: Scorer
    policies: FrozenPolicies
    temperature: float
    advantage_N: Tensor
    weight_N: Tensor
    meter: Meter
    first: bool

    def __call__(self, micro: MicroBatch, observe: bool) -> Tensor:
        """The part of one micro-batch, with gradient.

        Args:
            observe: this is the pass to learn from: take down metrics, complete prox. False in line searches.
        """
        places = micro.places.to(self.scorer.device)
        statistics = self._statistics(micro, places, freeze=self.first and observe)
        if observe:
            self.policies.keep_prox(places, statistics.logp.detach(), before_updates=self.first)
        terms = self._terms(micro, places, statistics)
        weighted = weighted_sum(self.row, terms, self.weight_N[places])
        if observe:
            corrected = self.row.correction.name != "none"
            self.meter.observe(terms, weighted.diagnostics, weighted.correction if corrected else None)
        return weighted.loss

    def _statistics(self, micro: MicroBatch, places: Tensor, *, freeze: bool) -> Statistics:
        """Statistics under theta. Under pruning, the pass that freezes chooses the vocabulary; others keep to it."""
        row, policies = self.row, self.policies
        chosen = policies.safe if row.prune and not freeze else None
        statistics = self.scorer.statistics(
            micro.bundles,
            temperature=self.temperature,
            asked_NK=policies.top["prox_top_ids"][places] if "top" in row.objective.reads else None,
            prune=row.prune,
            safe=None if chosen is None else chosen[places],
        )
        if freeze and statistics.safe is not None:
            policies.keep_vocabulary(places, statistics.safe)
        return statistics

    def _terms(self, micro: MicroBatch, places: Tensor, statistics: Statistics) -> Terms:
        row, policies, device = self.row, self.policies, self.scorer.device
        reads = row.objective.reads | row.correction.reads
        further = {name: getattr(statistics, name) for name in reads - POLICIES}
        if "top" in reads:
            further |= {"top_logp": cast(Tensor, statistics.asked_logp)}
            further |= {name: policies.top[name][places] for name in ("prox_top_logp", "prox_top_has")}
        return Terms(
            logp=statistics.logp,
            mu_logp=policies.mu_logp[places],
            prox_logp=policies.prox_logp[places],
            ref_logp=None if policies.ref_logp is None else policies.ref_logp[places],
            advantage=self.advantage_N[places],
            # Detached unless a piece reads it: a gradient through the entropy costs a pass over the vocabulary.
            entropy=statistics.entropy if "entropy" in row.reads else statistics.entropy.detach(),
            sample=micro.sample.to(device),
            group=micro.group.to(device),
            anchor=row.anchor,
            statistics=further,
        )
