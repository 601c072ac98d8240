"""The loss of an optimizer step: a plain weighted sum of terms, part by part, whose weights were
fixed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..errors import UsageError
from ..interfaces.algorithm import Algorithm
from ..interfaces.pieces import POLICIES
from ..models.head import Statistics
from ..models.transfers import to_device
from .loss_inputs import LossInputs
from .meter import Meter
from .microbatch import MicroBatch
from .pieces.objectives import kl_terms
from .scorer import FrozenPolicies, TokenScorer


@dataclass(frozen=True, kw_only=True)
class WeightedLoss:
    """A part of the step's loss.

    Attributes:
        loss: sum_k c_k w_k term_k, plus the KL terms, a scalar with gradient.
        diagnostics: metrics of the objective, by term.
        correction: the weights w, [N] or [S].
    """

    loss: Tensor
    diagnostics: Mapping[str, Tensor]
    correction: Tensor


def weighted_loss(algorithm: Algorithm, t: LossInputs, weight_N: Tensor) -> WeightedLoss:
    """Sum the objective's terms, each times the aggregation weight of its tokens and the
    correction's weight.

    A KL penalty in the loss is a term of each token, without correction. It weighs c per token,
    also where the objective's term is a sum over the sample (``sequence_clip``) and so weighs more:
    with the aggregation ``sequence`` the loss is 1/S sum_i [term_i + beta / T_i sum_t k_t].

    Args:
        weight_N: c of each token, from the aggregation over the whole optimizer step.

    Raises:
        UsageError: the objective or the correction returned a shape that does not fit its level.
    """
    returned = algorithm.objective(t)
    terms, diagnostics = returned if isinstance(returned, tuple) else (returned, {})
    term_weight = weight_N if algorithm.objective.level == "token" else t.sample_sum(weight_N)
    term_weight = t.group_sum(term_weight) if algorithm.objective.level == "group" else term_weight
    _check(algorithm.objective, terms, term_weight)
    correction = algorithm.correction(t).detach()
    _check(
        algorithm.correction,
        correction,
        weight_N if algorithm.correction.level == "token" else t.sample_sum(weight_N),
    )
    if algorithm.correction.level == "sequence" and algorithm.objective.level == "token":
        loss = (term_weight * t.spread(correction) * terms).sum()
    elif not algorithm.corrected:  # weights of 1 for tokens fit no terms of samples or groups
        loss = (term_weight * terms).sum()
    else:
        loss = (term_weight * correction * terms).sum()
    if algorithm.kl.in_loss:
        loss = loss + algorithm.kl.coefficient * (weight_N * kl_terms(t, algorithm.kl)).sum()
    return WeightedLoss(loss=loss, diagnostics=diagnostics, correction=correction)


def _check(piece: object, returned: Tensor, like: Tensor) -> None:
    if returned.shape != like.shape:
        raise UsageError(
            f"{piece!r} must return {list(like.shape)} values here, one per term and unreduced; "
            f"it returned {list(returned.shape)}"
        )


@dataclass(frozen=True, kw_only=True)
class MinibatchLoss:
    """The loss of one minibatch, as the sum of its micro-batches' parts.

    Attributes:
        algorithm: the algorithm.
        scorer: computes the statistics under theta.
        policies: mu, prox and ref; a first pass completes prox in them.
        temperature: of the policy.
        advantage_N, weight_N: advantage and aggregation weight of each trained token of the batch.
        columns: of the advantage, by trained token of the batch, in host memory.
        meter: records the metrics.
        first: no update of the step came before, so theta is prox.
    """

    algorithm: Algorithm
    scorer: TokenScorer
    policies: FrozenPolicies
    temperature: float
    advantage_N: Tensor
    weight_N: Tensor
    columns: Mapping[str, Tensor]
    meter: Meter
    first: bool

    def __call__(self, micro: MicroBatch, observe: bool) -> Tensor:
        """Return the part of one micro-batch, with gradient.

        Args:
            observe: record metrics and complete prox: true in the pass to learn from, false in line
                searches.
        """
        # Micro-batches reorder samples: `positions` finds what is known of each of their tokens in
        # the batch.
        positions = to_device(micro.positions, self.scorer.device)
        columns = {
            name: to_device(column[micro.positions], self.scorer.device)
            for name, column in self.columns.items()
        }
        asked_NK = columns.get("asked_ids")
        statistics = self._statistics(micro, positions, asked_NK, freeze=self.first and observe)
        if asked_NK is not None:
            columns["asked_logp"] = cast(Tensor, statistics.asked_logp)
        if observe:
            self.policies.keep_prox(positions, statistics.logp.detach(), before_updates=self.first)
        terms = self._terms(micro, positions, statistics, columns)
        weighted = weighted_loss(self.algorithm, terms, self.weight_N[positions])
        if observe:
            corrected = self.algorithm.correction.name != "none"
            self.meter.observe(
                terms, weighted.diagnostics, weighted.correction if corrected else None
            )
        return weighted.loss

    def _statistics(
        self, micro: MicroBatch, positions: Tensor, asked_NK: Tensor | None, *, freeze: bool
    ) -> Statistics:
        """Return the statistics under theta. Under pruning, the pass that freezes chooses the
        vocabulary; others keep to it.
        """
        algorithm, policies = self.algorithm, self.policies
        chosen = policies.safe if algorithm.prune and not freeze else None
        statistics = self.scorer.statistics(
            micro.prefix_groups,
            temperature=self.temperature,
            asked_NK=policies.top["prox_top_ids"][positions]
            if "top" in algorithm.objective.reads
            else asked_NK,
            prune=algorithm.prune,
            safe=None if chosen is None else chosen[positions],
        )
        if freeze and statistics.safe is not None:
            policies.keep_vocabulary(positions, statistics.safe)
        return statistics

    def _terms(
        self,
        micro: MicroBatch,
        positions: Tensor,
        statistics: Statistics,
        columns: Mapping[str, Tensor],
    ) -> LossInputs:
        algorithm, policies, device = self.algorithm, self.policies, self.scorer.device
        reads = algorithm.objective.reads | algorithm.correction.reads
        extra_statistics = {name: getattr(statistics, name) for name in reads - POLICIES}
        if "top" in reads:
            extra_statistics |= {"top_logp": cast(Tensor, statistics.asked_logp)}
            extra_statistics |= {
                name: policies.top[name][positions] for name in ("prox_top_logp", "prox_top_has")
            }
        return LossInputs(
            logp=statistics.logp,
            mu_logp=policies.mu_logp[positions],
            prox_logp=policies.prox_logp[positions],
            ref_logp=None if policies.ref_logp is None else policies.ref_logp[positions],
            advantage=self.advantage_N[positions],
            # Detached unless a piece reads it: a gradient through the entropy costs a pass over the
            # vocabulary.
            entropy=statistics.entropy
            if "entropy" in algorithm.reads
            else statistics.entropy.detach(),
            sample=to_device(micro.sample, device),
            group=to_device(micro.group, device),
            ratio_to=algorithm.ratio_to,
            statistics=extra_statistics | dict(columns),
        )
