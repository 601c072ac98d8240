"""Float64 all the way: transformers computes norms and rotary embeddings in float32 whatever the
type of the weights.

Both sides call `exact` on their float64 models; their own code is not touched. Needs torch alone.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def exact(model: nn.Module) -> nn.Module:
    """Replace the norms and rotary embeddings of a Qwen3 model by the same formulas in the type of
    its weights.
    """
    for part in model.modules():
        kind = type(part).__name__
        if kind.endswith("RMSNorm"):
            part.forward = MethodType(_norm, part)
        elif kind.endswith("RotaryEmbedding"):
            part.forward = MethodType(_rotary, part)
    return model


def _norm(self: Any, hidden: Tensor) -> Tensor:
    weight: Tensor = self.weight
    epsilon: float = self.variance_epsilon
    return weight * hidden * (hidden.square().mean(-1, keepdim=True) + epsilon).rsqrt()


@torch.no_grad()
def _rotary(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    config = self.config
    size = config.head_dim
    places = torch.arange(0, size, 2, dtype=torch.float64, device=x.device) / size
    angles = position_ids[..., None].double() * config.rope_parameters["rope_theta"] ** -places
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)
