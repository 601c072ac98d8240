"""Scores of trained tokens: their statistics under theta and ref, and what is frozen while a batch
trains.

Four policies score each token: mu sampled it, prox is the learner before the first update of the
batch, theta is the learner now, ref is the model that a KL penalty keeps it close to. mu, prox and
ref are frozen during a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..interfaces.algorithm import Algorithm
from ..interfaces.pieces import POLICIES
from ..models.forward import Forward
from ..models.head import Statistics
from ..models.prefix_layout import PrefixGroup
from ..models.transfers import to_device
from .batch import Batch
from .microbatch import MicroBatch, micro_batches
from .ranks import Ranks

Precision = Literal["float32", "bf16", "fp16"]
AUTOCAST = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The type that layers compute in, by precision; ``None`` is that of the weights."""


@dataclass(kw_only=True)
class FrozenPolicies:
    """Statistics of the policies that do not change during a step, at each of N trained tokens.

    Two things are not known before the first pass of the step: prox of the first minibatch, and the
    safe vocabulary of what no earlier pass has scored. `keep_prox` and `keep_vocabulary` write them
    down during that pass.

    Attributes:
        mu_logp: log-probs of the sampler, [N].
        prox_logp: log-probs of the learner before its first update; NaN where no pass has seen the
            token yet, [N].
        ref_logp: log-probs of the reference, [N]; ``None`` where the algorithm has no use for it.
        prox: further statistics under prox that the advantage reads, by name, each [N].
        top: ``prox_top_logp`` [N, K] and ``prox_top_has`` [N] of `LossInputs.statistics`, and the
            ids that they belong to, ``prox_top_ids`` [N, K]; empty where the objective does not
            compare them.
        safe: tokens that pruning left, as bits, [N, ceil(V / 8)]; ``None`` before a pass has
            pruned.
    """

    mu_logp: Tensor
    prox_logp: Tensor
    ref_logp: Tensor | None = None
    prox: dict[str, Tensor] = field(default_factory=dict)
    top: dict[str, Tensor] = field(default_factory=dict)
    safe: Tensor | None = None

    def statistics(self) -> Mapping[str, Tensor]:
        """Return all log-probs and further statistics by name, as an advantage reads them."""
        ref = {} if self.ref_logp is None else {"ref_logp": self.ref_logp}
        return {"mu_logp": self.mu_logp, "prox_logp": self.prox_logp, **self.prox, **ref}

    def keep_prox(self, positions: Tensor, logp: Tensor, *, before_updates: bool) -> None:
        """Take *logp* [n] of theta at *positions* [n] for prox.

        Args:
            before_updates: theta still is prox: replace also what an earlier pass gave, which
                rounded differently, so that the ratio is exactly 1. Otherwise only gaps are filled.
        """
        if before_updates:
            self.prox_logp[positions] = logp.to(self.prox_logp.dtype)
        else:
            earlier = self.prox_logp[positions]
            self.prox_logp[positions] = torch.where(earlier.isnan(), logp, earlier)

    def keep_vocabulary(self, positions: Tensor, safe: Tensor) -> None:
        """Freeze the tokens [n, ceil(V / 8)] that pruning left at *positions* [n]."""
        if self.safe is None:
            size = (len(self.prox_logp), safe.shape[1])
            self.safe = torch.zeros(size, dtype=safe.dtype, device=self.prox_logp.device)
        self.safe[positions] = safe

    def exchange(self, ranks: Ranks, parts: Sequence[MicroBatch]) -> None:
        """Give all ranks what this one kept in *parts*, and take over what they kept in theirs."""
        if ranks.count == 1:
            return
        device = self.prox_logp.device
        # Each token is in one micro-batch of one rank, so that a sum over ranks of its value there
        # and zeros elsewhere is its value, bit for bit.
        kept = torch.zeros(len(self.prox_logp), dtype=torch.bool, device=device)
        for micro in parts:
            kept[micro.positions.to(device)] |= not micro.padding
        anywhere = ranks.sum(kept.to(torch.uint8)).bool()
        widths = ranks.gather(0 if self.safe is None else self.safe.shape[1])
        if self.safe is None and any(widths):
            size = (len(self.prox_logp), max(widths))
            self.safe = torch.zeros(size, dtype=torch.uint8, device=device)
        for tensor in (self.prox_logp, self.safe):
            if tensor is not None:
                of_this_rank = torch.zeros_like(tensor)
                of_this_rank[kept] = tensor[kept]
                tensor[anywhere] = ranks.sum(of_this_rank)[anywhere]


@dataclass(kw_only=True)
class TokenScorer:
    """Computes statistics of tokens under theta, with or without gradient, and under ref.

    Attributes:
        forward: forward pass of theta.
        reference: the reference model; ``None`` where there is none, or where it is theta without
            its adapters.
        algorithm: the algorithm, for what it reads; ``None`` reads log-probs alone.
        half: type that the layers compute in under autocast; ``None`` is without autocast.
        math: type of the product with the output layer; ``None`` is that of the hidden states.
        token_budget: tokens of a micro-batch.
        ranks: the processes that share the micro-batches.
    """

    forward: Forward
    reference: nn.Module | None
    algorithm: Algorithm | None
    half: torch.dtype | None
    math: torch.dtype | None
    token_budget: int
    ranks: Ranks
    _reference_forward: Forward | None = field(default=None, init=False)

    @property
    def device(self) -> torch.device:
        return self.forward.device

    @property
    def dtype(self) -> torch.dtype:
        """Of statistics: float64 where the module is, else float32."""
        return torch.float64 if self.forward.head_weight.dtype == torch.float64 else torch.float32

    def micro_batches(self, batch: Batch, indices: Sequence[int]) -> list[MicroBatch]:
        """Return the micro-batches of the samples at *indices* that this rank takes."""
        level = self.algorithm.objective.level if self.algorithm else "token"
        return micro_batches(
            batch,
            indices,
            budget=self.token_budget,
            level=level,
            cost=self.forward.cost,
            ranks=self.ranks,
        )

    def statistics(self, prefix_groups: Sequence[PrefixGroup], **options: Any) -> Statistics:
        """Return the statistics under theta; options as in `head.statistics`."""
        return self._run(self.forward, prefix_groups, options)

    def nothing(self, micro: MicroBatch) -> Tensor:
        """Return 0 with a gradient of 0, after the passes that a loss of *micro*, which is padding,
        takes.
        """
        return self.statistics(micro.prefix_groups).logp.sum() * 0

    @torch.no_grad()
    def score(
        self,
        batch: Batch,
        indices: Sequence[int],
        policy: Literal["theta", "ref"] = "theta",
        *,
        safe: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the statistics [N] of the tokens of some samples, NaN (or 0) at the others.

        Args:
            safe: the only tokens that count at each position, as bits; ``None`` prunes by the
                algorithm's threshold.
        """
        scores: dict[str, Tensor] = {}
        options: dict[str, Any] = {"temperature": batch.temperature}
        if self.algorithm is not None:
            options["prune"] = self.algorithm.prune
            if policy == "theta" and "top" in self.algorithm.objective.reads:
                # The objective compares the likeliest tokens of prox, which is theta when this
                # runs.
                options["top"] = int(self.algorithm.objective.argument("top"))
        with self._forward_of(policy) as forward:
            for micro in self.micro_batches(batch, indices):
                positions = to_device(micro.positions, self.device)
                if safe is not None:
                    options["safe"] = safe[positions]
                statistics = self._run(forward, micro.prefix_groups, options)
                for name, value in vars(statistics).items():
                    if value is None:
                        continue
                    # A pass over padding makes the column, too: `ranks.sum` below needs it on all.
                    if name not in scores:
                        kind = self.dtype if value.is_floating_point() else value.dtype
                        shape = (batch.tokens, *value.shape[1:])
                        scores[name] = torch.zeros(shape, dtype=kind, device=self.device)
                    if not micro.padding:
                        scores[name][positions] = value.to(scores[name].dtype)
        unknown = torch.ones(batch.tokens, dtype=torch.bool, device=self.device)
        unknown[batch.positions(indices).to(self.device)] = False
        for name, value in scores.items():
            scores[name] = self.ranks.sum(value)  # each token is one rank's, and 0 on others
            if value.is_floating_point():
                scores[name][unknown] = float("nan")
        return scores

    def freeze(self, batch: Batch, later: Sequence[int]) -> FrozenPolicies:
        """Score the frozen policies before the first update, as far as the algorithm needs it.

        The first pass over a minibatch that is trained before any update gives its prox for
        nothing. So one update per batch needs no pass for prox, unless something reads it earlier.

        Args:
            later: samples whose minibatch comes after the first update.
        """
        algorithm = cast(Algorithm, self.algorithm)
        mu_logp = batch.mu_logp.to(self.device, self.dtype)
        policies = FrozenPolicies(mu_logp=mu_logp, prox_logp=torch.full_like(mu_logp, float("nan")))
        everyone = range(len(batch.samples))
        scored = everyone if algorithm.scores_prox else later
        if scored:
            scores = self.score(batch, scored)
            policies.prox_logp = scores["logp"]
            policies.prox = {name: scores[name] for name in algorithm.advantage.reads - POLICIES}
            policies.safe = scores.get("safe")
            if "top_ids" in scores:
                # Compare ids, not log-probs: the sampled token's may round differently from that in
                # the list.
                ids = batch.ids.to(self.device).unsqueeze(1)
                policies.top = {
                    "prox_top_ids": scores["top_ids"],
                    "prox_top_logp": scores["top_logp"],
                    "prox_top_has": (scores["top_ids"] == ids).any(1),
                }
        if algorithm.uses_reference:
            policies.ref_logp = self.score(batch, everyone, "ref", safe=policies.safe)["logp"]
        return policies

    def _run(
        self, forward: Forward, prefix_groups: Sequence[PrefixGroup], options: Mapping[str, Any]
    ) -> Statistics:
        # Autocast needs the name of a type even where it is off.
        half = self.half or torch.bfloat16
        with torch.autocast(self.device.type, dtype=half, enabled=self.half is not None):
            return forward.statistics(prefix_groups, math=self.math, **options)

    @contextlib.contextmanager
    def _forward_of(self, policy: Literal["theta", "ref"]) -> Iterator[Forward]:
        module: Any = self.forward.module
        if policy == "theta":
            yield self.forward
        elif self.reference is not None:
            if self._reference_forward is None:
                # Not in the constructor: a forward runs its module to choose a layout.
                self._reference_forward = Forward(
                    self.reference,
                    layout=self.forward.layout,
                    device=self.device,
                    half=self.forward.half,
                    gathers=self.forward.gathers,
                )
            yield self._reference_forward
        elif hasattr(module, "disable_adapter"):
            # With adapters the model before training is still there, under them.
            with module.disable_adapter():
                yield self.forward
        else:
            raise UsageError("no reference model is kept: the algorithm does not use one")
