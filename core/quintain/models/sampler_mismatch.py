"""Whether the sampler and the learner give the same tokens the same log-probs under the same
weights.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RunError
from ..types.transcript import TrainingSequence
from .probe import plain_log_probs

log = logging.getLogger(__name__)


class SamplerMismatch(RunError):
    """Under the same weights, log-probs of sampler and learner differ by more than rounding
    explains.

    Attributes:
        difference, limit: of the sample that differs most, in nats; and what rounding explains.
        sequences: its sequences.
        prox_logp: log-probs of their trained tokens under the learner, one after the other.
        samples: names of the samples with such tokens, where the run has left others out before.
    """

    def __init__(
        self,
        fault: str,
        difference: float,
        limit: float,
        sequences: Sequence[TrainingSequence],
        prox_logp: Sequence[float] = (),
        samples: str = "",
    ) -> None:
        super().__init__(
            f"with the same weights, engine and learner give the tokens of a sample log-probs that "
            f"differ by "
            f"{difference:.3g} nats, and rounding explains {limit:g}. At fault: {fault}."
            f"{samples and f' {samples}.'} Nothing "
            f"of this step is "
            'saved. Please report the architecture; run.max_sample_mismatch = "none" trains '
            "nonetheless"
        )
        self.difference = difference
        self.limit = limit
        self.sequences = sequences
        self.prox_logp = prox_logp
        self.samples = samples


def typical_difference(
    a_logp: Tensor | Sequence[float], b_logp: Tensor | Sequence[float], few: int = 8
) -> float:
    """Return the median of \\|a - b\\| over n tokens, n from 1, divided by 1 + *few* / n to
    discount medians of few tokens.

    A median, since half precision may route single tokens to other experts, and is far off there.
    """
    gaps = (
        torch.as_tensor(a_logp, dtype=torch.float64) - torch.as_tensor(b_logp, dtype=torch.float64)
    ).abs()
    return float(gaps.median()) / (1 + few / gaps.numel())


EXACT_TOKEN = 10.0
"""Where both compute in float32, a token may differ by so many times the limit of a sample: a single
token that is off by a tenth of a nat is no rounding.
"""
HALF_MEAN = 5.0
"""In half precision single tokens may go to other experts, so the mean over a sample counts, and may
be so many times the limit.
"""


def largest_difference(
    a_logp: Tensor | Sequence[float], b_logp: Tensor | Sequence[float], *, exact: bool
) -> float:
    """Return what `tokens_differ` compares: \\|a - b\\| of the token that differs most, unless
    *exact* its mean over n tokens divided by 1 + 8 / n; not finite where a log-prob is not.
    """
    gaps = (
        torch.as_tensor(a_logp, dtype=torch.float64) - torch.as_tensor(b_logp, dtype=torch.float64)
    ).abs()
    return float(gaps.max() if exact else gaps.mean() / (1 + 8 / gaps.numel()))


def token_limit(limit: float, *, exact: bool) -> float:
    """Return the `largest_difference` that the precision explains, in nats.

    Args:
        limit: of `typical_difference`.
        exact: engine and learner compute in float32.
    """
    return limit * (EXACT_TOKEN if exact else HALF_MEAN)


def doubtful(
    prox_logp: Tensor,
    mu_logp: Tensor,
    sample: Tensor,
    fresh: Tensor,
    limit: float,
    *,
    exact: bool,
) -> dict[int, float]:
    """Return the `largest_difference` of each sample, by its index, that is above its
    `token_limit`; the arguments are those of `differences` and `token_limit`.
    """
    compared = fresh & ~prox_logp.isnan().cpu()
    names, counts = sample[compared].unique_consecutive(return_counts=True)
    found: dict[int, float] = {}
    proxes = prox_logp.cpu()[compared].split(counts.tolist())
    mus = mu_logp.cpu()[compared].split(counts.tolist())
    for name, prox, mu in zip(names.tolist(), proxes, mus, strict=True):
        difference = largest_difference(prox, mu, exact=exact)
        # written so that a difference that is not a number is found
        if not difference <= token_limit(limit, exact=exact):
            found[name] = difference
    return found


MOST_LEFT_OUT = 3
"""Samples with such tokens, at which a run stops."""


class Doubtful(Exception):
    """Tokens of samples that were not left out yet differ by more than rounding explains."""


class DoubtfulSamples:
    """Those that a learner leaves out, see `doubtful`.

    Args:
        exact: engine and learner compute in float32.

    Attributes:
        left_out: of the present step, by index.
    """

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self.left_out: set[int] = set()
        self._count = 0

    def check(
        self,
        prox_logp: Tensor,
        mu_logp: Tensor,
        sample: Tensor,
        fresh: Tensor,
        limit: float,
        samples: Sequence[Any],
    ) -> tuple[int, float, float, str] | None:
        """Return the worst sample, its difference, the limit of that and the names of all, once there
        are `MOST_LEFT_OUT` in the learner's life; the first arguments are those of `doubtful`.

        Args:
            samples: those of the step, each with its group and its environment.

        Raises:
            Doubtful: there are fewer; they are left out now.
        """
        for known in self.left_out:
            fresh = fresh & (sample != known)
        found = doubtful(prox_logp, mu_logp, sample, fresh, limit, exact=self.exact)
        if not found:
            return None
        self._count += len(found)
        names = "; ".join(
            f"sample {i} of group {samples[i].group} {samples[i].environment} by {gap:.2g} nats"
            for i, gap in found.items()
        )
        if self._count < MOST_LEFT_OUT:
            self.left_out |= set(found)
            log.warning("left out of the update, since tokens differ: %s", names)
            raise Doubtful
        worst = max(found, key=lambda i: (found[i], i))
        names = f"{self._count} samples of this run have such tokens: {names}"
        return worst, found[worst], token_limit(limit, exact=self.exact), names


def differences(
    prox_logp: Tensor, mu_logp: Tensor, sample: Tensor, fresh: Tensor
) -> dict[int, float]:
    """Return `typical_difference` of each sample, by its index, over the tokens scored under prox
    (not NaN) that are *fresh*.

    The largest is at least that of the tokens of all samples to which both give a probability below
    0.9: most log-probs of a peaked policy are near 0 whatever is wrong, and a sample has few
    others.

    Args:
        prox_logp, mu_logp: [N].
        sample: which sample each token belongs to, ascending, [N].
        fresh: whether prox has the weights that sampled the token, [N].
    """
    compared = fresh & ~prox_logp.isnan().cpu()
    names, counts = sample[compared].unique_consecutive(return_counts=True)
    prox, mu = prox_logp.cpu()[compared], mu_logp.cpu()[compared]
    gaps = map(typical_difference, prox.split(counts.tolist()), mu.split(counts.tolist()))
    by_sample = dict(zip(names.tolist(), gaps, strict=True))
    unsure = torch.maximum(prox, mu).exp() < 0.9
    if bool(unsure.any()):
        worst = max(by_sample, key=by_sample.__getitem__)
        by_sample[worst] = max(
            by_sample[worst], typical_difference(prox[unsure], mu[unsure], few=32)
        )
    return by_sample


@torch.no_grad()
def own_logps(module: nn.Module, sequence: TrainingSequence, temperature: float) -> list[float]:
    """Return the log-probs of the tokens of *sequence* that train, from *module*'s own forward."""
    logp_TV = (plain_log_probs(module, sequence.ids) / temperature).log_softmax(-1)
    return [
        float(logp_TV[position - 1, sequence.ids[position]])
        for position, trains in enumerate(sequence.mask)
        if trains
    ]
