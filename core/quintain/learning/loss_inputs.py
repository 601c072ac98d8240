"""What an objective or a correction sees of a micro-batch: trained tokens only, laid flat.

Observation and prompt tokens are not there, so nothing can leak into them. N trained tokens, S
samples, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..errors import UsageError
from ..interfaces.algorithm import RatioTo

RatioPool = Literal["token", "product", "geometric"]


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Log-probs at the policy's temperature under mu, prox, theta and ref, and what else a term may
    read.

    Attributes:
        logp: under theta, with gradient, [N].
        mu_logp: under the sampler, at each token's own version, [N].
        prox_logp: under the learner before the first update of the batch, [N].
        ref_logp: under ref, [N]; ``None`` unless the KL term is on or a piece reads ``ref``.
        advantage: [N].
        entropy: of theta, in nats, [N]; with gradient where the piece reads it.
        sample: which sample each token belongs to, [N], from 0 without gaps.
        group: which group each sample belongs to, [S], from 0 without gaps.
        ratio_to: the policy in the denominator of ratios.
        statistics: further statistics that pieces asked for, each [N]; for ``top`` also
            ``top_logp`` and ``prox_top_logp``, the log-probs under theta and prox of prox's
            likeliest tokens, [N, K], and ``prox_top_has``, whether the sampled token is one of
            these. Also the columns that the advantage returned; with ``asked_ids`` [N, K] among
            them, ``asked_logp``, the log-probs of these ids under theta, with gradient, [N, K], and
            ``rest_logp``, the log of the probability of all others, [N], ``None`` if there are none.
    """

    logp: Tensor
    mu_logp: Tensor
    prox_logp: Tensor
    ref_logp: Tensor | None = None
    advantage: Tensor
    entropy: Tensor
    sample: Tensor
    group: Tensor
    ratio_to: RatioTo = "prox"
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    def log_ratio(self, pool: RatioPool = "token") -> Tensor:
        """Return log theta - log ratio_to: of each token [N], or of each sample [S] as the sum or
        the mean over its tokens.
        """
        below = self.mu_logp if self.ratio_to == "mu" else self.prox_logp
        return self._pooled(self.logp - below, pool)

    def ratio(self, pool: RatioPool = "token") -> Tensor:
        """Return theta / ratio_to: of each token [N], or of each sample [S] as the product or the
        geometric mean of its tokens'.
        """
        return self.log_ratio(pool).exp()

    def mismatch(self, pool: RatioPool = "token") -> Tensor:
        """Return prox / mu, without gradient: how far the sampler was from the learner. [N] or [S]."""
        return self._pooled((self.prox_logp - self.mu_logp).detach(), pool).exp()

    def _pooled(self, log: Tensor, pool: RatioPool) -> Tensor:
        if pool == "token":
            return log
        if pool == "product":
            return self.sample_sum(log)
        if pool == "geometric":
            return self.sample_mean(log)
        raise UsageError(f"a ratio is pooled by 'token', 'product' or 'geometric', not {pool!r}")

    def sample_sum(self, x: Tensor) -> Tensor:
        """Sum of [N] over each sample's tokens, [S]."""
        return x.new_zeros(self.group.shape[0]).index_add(0, self.sample, x)

    def sample_mean(self, x: Tensor) -> Tensor:
        """Return the mean of [N] over each sample's tokens, [S]."""
        return self.sample_sum(x) / self.sample_sum(torch.ones_like(x)).clamp(min=1)

    def sample_max(self, x: Tensor) -> Tensor:
        """Return the largest of [N] over each sample's tokens, [S]; 0 for a sample without tokens."""
        return x.new_zeros(self.group.shape[0]).scatter_reduce(
            0, self.sample, x, "amax", include_self=False
        )

    def group_sum(self, x: Tensor) -> Tensor:
        """Sum of [S] over each group's samples, [G]."""
        groups = int(self.group.max()) + 1 if self.group.numel() else 0
        return x.new_zeros(groups).index_add(0, self.group, x)

    def spread(self, x: Tensor) -> Tensor:
        """Spread values of samples [S] over their tokens [N]."""
        return x.index_select(0, self.sample)
