from dataclasses import replace

import torch
from torch import Tensor

from quintain import KL, objective
from quintain.learning import ALGORITHMS, LossInputs


@objective(idle=True)
def sapo(t: LossInputs, *, positive: float = 1.0, negative: float = 1.05) -> Tensor:
    """-(4 / tau) sigmoid(tau (r - 1)) A, r = theta / ratio_to per token (SAPO, 2511.20347).

    Args:
        positive, negative: tau for advantages above 0, and for all others.
    """
    tau = torch.full_like(t.advantage, negative).masked_fill(t.advantage > 0, positive)
    return -4 / tau * torch.sigmoid(tau * (t.ratio() - 1)) * t.advantage


SAPO = replace(
    ALGORITHMS["grpo"],
    name="sapo",
    summary=(
        "GRPO with a sigmoid gate on the ratio instead of the clip, steeper for negative "
        "advantages."
    ),
    source="Gao et al. 2025, arXiv 2511.20347",
    objective=sapo,
    kl=KL(),
    published={},
)
