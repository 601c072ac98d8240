"""The loss of an optimizer step, micro-batch by micro-batch: sum_k c_k w_k term_k. The weights c are
fixed before, over the whole step, so nothing is divided here.
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
        loss: sum_k c_k w_k term_k + beta sum_k c_k kl_k, a scalar with gradient.
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
    also where the objective has one term per sample, whose gradient is a sum over its tokens
    (``sequence_clip``). There the same beta restrains a sample of T tokens T times less:
    with the aggregation ``sequence`` the loss is 1/S sum_i [term_i + beta / T_i sum_t k_t].

    Args:
        weight_N: c of each token, from the aggregation over the whole optimizer step.

    Raises:
        UsageError: the objective or the correction returned a shape that does not fit its level.
    """
    terms = algorithm.objective(t)
    diagnostics: Mapping[str, Tensor] = {}
    if isinstance(terms, tuple):
        terms, diagnostics = terms
    # A term weighs what its tokens weigh together.
    term_weight = weight_N
    if algorithm.objective.level != "token":
        term_weight = t.sample_sum(term_weight)
    if algorithm.objective.level == "group":
        term_weight = t.group_sum(term_weight)
    _check(algorithm.objective, terms, term_weight)
    # No gradient: a correction weighs what was sampled, and the policy must not learn to change it.
    correction = algorithm.correction(t).detach()
    of_tokens = algorithm.correction.level == "token"
    _check(algorithm.correction, correction, t.sample if of_tokens else t.group)
    if algorithm.corrected:  # weights of 1 for tokens would fit no terms of samples or groups
        spread = algorithm.objective.level == "token" and not of_tokens
        term_weight = term_weight * (t.spread(correction) if spread else correction)
    loss = (term_weight * terms).sum()
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
    """

    algorithm: Algorithm
    scorer: TokenScorer
    policies: FrozenPolicies
    temperature: float
    advantage_N: Tensor
    weight_N: Tensor
    columns: Mapping[str, Tensor]
    meter: Meter

    def __call__(self, micro: MicroBatch, observe: bool) -> Tensor:
        """Return the part of one micro-batch, with gradient.

        Args:
            observe: record metrics and complete prox: true in the pass to learn from, false in line
                searches.
        """
        if micro.padding:
            return self.scorer.nothing(micro)
        first = not self.meter.updates  # so theta is prox
        # Micro-batches reorder samples: `positions` finds what is known of each of their tokens in
        # the batch.
        positions = to_device(micro.positions, self.scorer.device)
        columns = {
            name: to_device(column[micro.positions], self.scorer.device)
            for name, column in self.columns.items()
        }
        asked_NK = columns.get("asked_ids")
        # Only the first look at a token under prox is kept: a line search looks again, at other weights.
        statistics = self._statistics(micro, positions, asked_NK, freeze=first and observe)
        if asked_NK is not None:
            for name in ("asked_logp", "rest_logp"):
                columns[name] = getattr(statistics, name)
        if observe:
            self.policies.keep_prox(positions, statistics.logp.detach(), before_updates=first)
        # After `keep_prox`, so that the ratio of the first update is exactly 1.
        inputs = self._inputs(micro, positions, statistics, columns)
        weighted = weighted_loss(self.algorithm, inputs, self.weight_N[positions])
        if observe:
            correction = weighted.correction if self.algorithm.corrected else None
            self.meter.observe(inputs, weighted.diagnostics, correction)
        return weighted.loss

    def _statistics(
        self, micro: MicroBatch, positions: Tensor, asked_NK: Tensor | None, *, freeze: bool
    ) -> Statistics:
        """Return the statistics under theta. Under pruning, the pass that freezes chooses the
        vocabulary; others keep to it.
        """
        algorithm = self.algorithm
        policies = self.policies
        if "top" in algorithm.objective.reads:
            asked_NK = policies.top["prox_top_ids"][positions]
        safe = None
        if algorithm.prune and not freeze and policies.safe is not None:
            safe = policies.safe[positions]
        statistics = self.scorer.statistics(
            micro.prefix_groups,
            temperature=self.temperature,
            asked_NK=asked_NK,
            prune=algorithm.prune,
            safe=safe,
        )
        if freeze and statistics.safe is not None:
            policies.keep_vocabulary(positions, statistics.safe)
        return statistics

    def _inputs(
        self,
        micro: MicroBatch,
        positions: Tensor,
        statistics: Statistics,
        columns: Mapping[str, Tensor],
    ) -> LossInputs:
        algorithm = self.algorithm
        policies = self.policies
        device = self.scorer.device
        reads = algorithm.objective.reads | algorithm.correction.reads
        further: dict[str, Tensor] = {name: getattr(statistics, name) for name in reads - POLICIES}
        if "top" in reads:
            further["top_logp"] = cast(Tensor, statistics.asked_logp)
            further["prox_top_logp"] = policies.top["prox_top_logp"][positions]
            further["prox_top_has"] = policies.top["prox_top_has"][positions]
        entropy = statistics.entropy
        if "entropy" not in algorithm.reads:
            # A gradient through the entropy costs a pass over the vocabulary.
            entropy = entropy.detach()
        return LossInputs(
            logp=statistics.logp,
            mu_logp=policies.mu_logp[positions],
            prox_logp=policies.prox_logp[positions],
            ref_logp=None if policies.ref_logp is None else policies.ref_logp[positions],
            advantage=self.advantage_N[positions],
            entropy=entropy,
            sample=to_device(micro.sample, device),
            group=to_device(micro.group, device),
            ratio_to=algorithm.ratio_to,
            statistics=further | dict(columns),
        )
