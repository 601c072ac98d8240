"""The learner `lean`: what it computes, refuses, saves and takes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from quintain.errors import UsageError
from quintain.learning import ALGORITHMS, Learner
from quintain.models.lora import with_adapters
from quintain_learners.lean import Lean, LeanLearner

from ....core.learning.batches import batch
from ....core.models.tiny import tiny_model

OPTIMIZERS = ("adamw_8bit", "adamw_host")
KINDS = ("qwen3", "llama", "gpt2")


def lean(module: Any, optimizer: Any = "adamw_8bit", **settings: Any) -> LeanLearner:
    """Return a learner of *module* in `bf16` under Dr. GRPO."""
    settings = {"precision": "bf16", "lr": 1e-3} | settings
    return LeanLearner(module, ALGORITHMS["dr_grpo"], optimizer=optimizer, **settings)


def half_model(kind: str = "qwen3") -> Any:
    """Return a tiny model in bfloat16."""
    return tiny_model(kind, dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_those_of_autocast_over_the_same_weights(kind: str) -> None:
    """Weights in bfloat16 and the same numbers in float32 give the same log-probs: layers add up
    in float32 either way. In the layouts of other models their own forward decides, to 8 bits.
    """
    module = half_model(kind)
    wide = copy.deepcopy(module).float()
    expected = Learner(wide, ALGORITHMS["dr_grpo"], precision="bf16").logprobs(batch())
    actual = lean(module).logprobs(batch())
    tolerance = 0.0 if kind != "gpt2" else 0.05
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_stay_bfloat16_and_move(optimizer: str) -> None:
    """An update changes weights in their own type, and their gradients are theirs."""
    learner = lean(half_model(), optimizer)
    before = copy.deepcopy(learner.module.state_dict())
    learner.step(batch())
    assert {p.dtype for p in learner.module.parameters()} == {torch.bfloat16}
    assert {p.grad.dtype for p in learner.parameters if p.grad is not None} == {torch.bfloat16}
    moved = [n for n, p in learner.module.state_dict().items() if not torch.equal(p, before[n])]
    assert len(moved) > len(before) / 2


def test_adapters_train_in_float32_on_a_base_in_bfloat16() -> None:
    """The base stays as it was, and gradients are those over the same base in float32."""
    torch.manual_seed(1)
    module = with_adapters(half_model(), {"r": 2})
    for name, parameter in module.named_parameters():  # both maps of an adapter have a gradient
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    wide = copy.deepcopy(module).float()
    base = {n: p.clone() for n, p in module.named_parameters() if not p.requires_grad}
    small, plain = (
        lean(module, "adamw"),
        Learner(wide, ALGORITHMS["dr_grpo"], precision="bf16", lr=1e-3),
    )
    for learner in (small, plain):
        learner.step(batch())
    assert {p.dtype for p in small.parameters} == {torch.float32}
    assert all(torch.equal(p, base[n]) for n, p in module.named_parameters() if n in base)
    for actual, expected in zip(small.parameters, plain.parameters, strict=True):
        assert actual.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(actual.grad, expected.grad, rtol=0.05, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_learner_continues_bit_for_bit(optimizer: str) -> None:
    """Two updates, saved and restored in a new learner, and two more equal four."""
    learner = lean(half_model(), optimizer)
    batches = [batch(seed=seed) for seed in range(4)]
    for update in batches[:2]:
        learner.step(update)
    state = copy.deepcopy(learner.state_dict())
    resumed = lean(tiny_model(seed=9, dtype=torch.bfloat16), optimizer)
    resumed.load_state_dict(state)
    for update in batches[2:]:
        learner.step(update)
        resumed.step(update)
    for actual, expected in zip(resumed.parameters, learner.parameters, strict=True):
        assert torch.equal(actual, expected)


def test_plain_adamw_of_bfloat16_weights_is_refused() -> None:
    """The error names the settings that work."""
    with pytest.raises(UsageError, match="does not move weights in bfloat16.*adamw_8bit"):
        lean(half_model(), "adamw")
    lean(tiny_model(), "adamw")


def test_bfloat16_without_autocast_is_refused() -> None:
    """The error names the key."""
    with pytest.raises(UsageError, match=r'need learner.precision = "bf16"'):
        lean(half_model(), precision="float32")


@pytest.mark.parametrize(
    "kind",
    [
        Lean(),
        Lean(optimizer="adamw_host"),
        Lean(weights="float32"),
        Lean(weights="float32", optimizer="adamw"),
    ],
    ids=str,
)
def test_the_bytes_that_are_planned_are_taken(kind: Lean) -> None:
    """Weights, gradients and moments on the device take what `--dry-run` says, within 5 %."""
    dtype = torch.bfloat16 if kind.weights == "bfloat16" else torch.float32
    module = tiny_model(hidden=128, vocab=1024, dtype=dtype)
    learner = kind(module, ALGORITHMS["dr_grpo"], precision="bf16")
    learner.step(batch())
    numbers = sum(p.numel() for p in learner.parameters)
    planned = kind.bytes_per_parameter(adapters=False)
    gradients = [p.grad for p in learner.parameters]
    assert _bytes(list(learner.parameters)) == planned.weights * numbers
    assert _bytes(gradients) == planned.gradients * numbers
    optimizer = learner.state_dict(weights=False)["optimizer"]
    states = optimizer if kind.optimizer == "adamw_host" else list(optimizer["state"].values())
    expected = (planned.moments + planned.host) * numbers
    assert _bytes(states) == pytest.approx(expected, rel=0.05)


def _bytes(value: Any) -> int:
    """Return the bytes of all tensors in *value*."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    parts = value.values() if isinstance(value, dict) else value
    return sum(_bytes(part) for part in parts) if isinstance(value, (dict, list)) else 0
