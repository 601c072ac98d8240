"""Whether the sampler and the learner give the same tokens the same log-probs under the same
weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import RunError
from ..types.transcript import TrainingSequence
from .probe import plain_log_probs


class SamplerMismatch(RunError):
    """Under the same weights, log-probs of sampler and learner differ by more than rounding
    explains.

    Attributes:
        difference, limit: of the sample that differs most, in nats; and what rounding explains.
        sequences: its sequences.
        prox_logp: log-probs of their trained tokens under the learner, one after the other.
    """

    def __init__(
        self,
        fault: str,
        difference: float,
        limit: float,
        sequences: Sequence[TrainingSequence],
        prox_logp: Sequence[float] = (),
    ) -> None:
        super().__init__(
            f"with the same weights, engine and learner give the tokens of a sample log-probs that "
            f"differ by "
            f"{difference:.2g} nats, and rounding explains {limit:g}. At fault: {fault}. Nothing "
            f"of this step is "
            'saved. Please report the architecture; run.max_sample_mismatch = "none" trains '
            "nonetheless"
        )
        self.difference = difference
        self.limit = limit
        self.sequences = sequences
        self.prox_logp = prox_logp


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
