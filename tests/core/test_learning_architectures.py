"""Every architecture of the table trains: padded rows in a micro-batch give the gradient of the module's own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.models.forward import Forward, TokenSequence
from quintain.models.load import trainable

from .architectures import ARCHITECTURES, architecture

NO_DECODER = ("bert", "electra")
ROWS = [[(7 * i + 3 * j) % 60 for j in range(n)] for i, n in enumerate((14, 3, 9, 20))]


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in NO_DECODER])
def test_gradients_are_those_of_the_modules_own_logits(name: str) -> None:
    """With activation checkpointing, hence in training mode, longer than the windows of the table."""
    plain = architecture(name)
    wanted = _gradients(plain, torch.cat([_log_probs(plain, ids) for ids in ROWS]))
    module = trainable(architecture(name), None)
    forward = Forward(module, checkpointing=True)
    found = _gradients(module, forward.statistics([[TokenSequence(ids, range(1, len(ids))) for ids in ROWS]]).logp)
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for parameter, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[parameter], rtol=0, atol=2e-5 * largest, msg=parameter)


def _gradients(module: Any, log_probs: Tensor) -> dict[str, Tensor]:
    named = dict(module.named_parameters())
    values = torch.autograd.grad(log_probs.sum(), list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, values, strict=True))


def _log_probs(module: Any, ids: list[int]) -> Tensor:
    logits = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
