"""Scaled, soft-capped and biased output layers: log-probs and gradients are those of the module's
own logits.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain.models.forward import Forward
from quintain.models.head import LogitMap
from quintain.models.prefix_layout import TokenSequence
from quintain.models.probe import logit_map_of

from .architectures import architecture

CAPPED: dict[str, Any] = {"final_logit_softcapping": 30.0}
HEADS: dict[str, tuple[dict[str, Any], LogitMap]] = {
    "gemma2": ({}, LogitMap(cap=30.0)),
    "gemma3": (CAPPED, LogitMap(cap=30.0)),
    "granite": ({"logits_scaling": 13.0}, LogitMap(scale=1 / 13)),
    "cohere": ({}, LogitMap(scale=0.0625)),
    "cohere2": ({"logit_scale": 0.25}, LogitMap(scale=0.25)),
    "falcon-h1": ({"lm_head_multiplier": 0.5}, LogitMap(scale=0.5)),
    "phi": ({}, LogitMap()),  # a bias
    "gptj": ({}, LogitMap()),  # a bias
}
ROWS = [[5, 9, 60, 33, 2, 17, 9], [5, 9, 60, 7]]


@pytest.mark.parametrize("name", HEADS)
def test_the_map_is_found_whatever_the_weights(name: str) -> None:
    """It is that of the config, with weights so small that neither scale nor cap shows in the
    logits.
    """
    fields, expected = HEADS[name]
    found = logit_map_of(architecture(name, spread=1e-4, **fields))
    assert found.scale == pytest.approx(expected.scale, rel=1e-6)
    assert found.cap == pytest.approx(expected.cap, rel=1e-6)


@pytest.mark.keeps("gemma2-0.01", "granite-0.01", "cohere2-0.01", "phi-0.01")
@pytest.mark.parametrize("loudness", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_those_of_the_modules_own_logits(name: str, loudness: float) -> None:
    """In float64, at a temperature, of log-prob and entropy, with small logits and logits beyond
    the cap.
    """
    module = architecture(name, dtype=torch.float64, **HEADS[name][0])
    with torch.no_grad():
        module.get_output_embeddings().weight.mul_(loudness)
    forward = Forward(module, layout="bucketed")
    temperature, trained = 0.7, [p for p in module.parameters() if p.requires_grad]
    found = [
        forward.statistics([[TokenSequence(ids, range(1, len(ids)))]], temperature=temperature)
        for ids in ROWS
    ]
    plain = [_plain(module, ids, temperature) for ids in ROWS]
    logp, expected = torch.cat([s.logp for s in found]), torch.cat([logp for logp, _ in plain])
    torch.testing.assert_close(logp, expected, rtol=1e-9, atol=1e-6)
    got = torch.autograd.grad(
        logp.sum() + sum(s.entropy.sum() for s in found), trained, materialize_grads=True
    )
    want = torch.autograd.grad(
        expected.sum() + sum(e.sum() for _, e in plain), trained, materialize_grads=True
    )
    largest = max(float(g.abs().max()) for g in want)
    assert 0 < largest < inf
    for a, b in zip(got, want, strict=True):
        # norms of transformers round to float32
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * largest)


def _plain(module: Any, ids: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    log_probs = (
        module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1] / temperature
    ).log_softmax(-1)
    return log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0], -(
        log_probs.exp() * log_probs
    ).sum(-1)


@pytest.mark.parametrize("name", HEADS)
def test_full_logits_are_the_modules(name: str) -> None:
    """What the natural gradient computes from, with its gradient."""
    module = architecture(name, dtype=torch.float64, **HEADS[name][0])
    weight, ids = module.get_output_embeddings().weight, ROWS[0]
    forward = Forward(module, layout="bucketed")
    found = forward.logits(forward.hidden([[TokenSequence(ids, range(1, len(ids)))]]))
    expected = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)
    (got,), (want,) = (torch.autograd.grad(x.square().sum(), weight) for x in (found, expected))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6 * float(want.abs().max()))
