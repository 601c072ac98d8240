"""Corrections for the mismatch between the sampler mu and the learner prox: weights that carry no
gradient.

A correction weighs the objective only; the KL term is not weighed. Denominators keep the tokens
that a correction masks. Plugins with algorithms have more of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...interfaces.pieces import correction
from ..loss_inputs import LossInputs


@correction(name="none")
def uncorrected(t: LossInputs) -> Tensor:
    """Weight 1: mu and prox are taken to be one policy."""
    return torch.ones_like(t.mu_logp)


@correction
def tis(t: LossInputs, *, cap: float = 2.0) -> Tensor:
    """min(prox / mu, cap) per token, without a lower bound: truncated importance sampling (Yao et
    al. 2025; cap 2 as in verl and open-instruct).
    """
    return t.mismatch().clamp(max=cap)
