"""The scorer: equal to full logits in values and gradients, whatever the chunk; never holds the logits of a batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintain.model.head import statistics


def case(n: int = 7, d: int = 5, v: int = 11, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(v, d, generator=draw, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(v, (n,), generator=draw)


def plain(hidden: Tensor, weight: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, ...]:
    logp = ((hidden @ weight.t()) / temperature).log_softmax(-1)
    prob = logp.exp()
    return logp.gather(1, target[:, None])[:, 0], -(prob * logp).sum(1), prob.square().sum(1), logp.mean(1)


@settings(max_examples=25, deadline=None)
@given(chunk=st.integers(1, 9), temperature=st.sampled_from([0.7, 1.0, 1.7]), seed=st.integers(0, 99))
def test_equals_full_logits_with_gradients(chunk: int, temperature: float, seed: int) -> None:
    hidden, weight, target = case(seed=seed)
    found = statistics(hidden, weight, target, temperature=temperature, chunk=chunk)
    want = plain(hidden, weight, target, temperature)
    got = (found.logp, found.entropy, found.square, found.mean_logp)
    mix = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    grads = torch.autograd.grad((torch.stack(got) * mix).sum(), (hidden, weight))
    wanted = torch.autograd.grad((torch.stack(want) * mix).sum(), (hidden, weight))
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_of_every_statistic() -> None:
    hidden, weight, target = case(n=4, d=3, v=5)
    asked = torch.tensor([[0, 1], [2, 2], [4, 0], [1, 3]])

    def run(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        s = statistics(hidden, weight, target, temperature=0.8, chunk=3, asked_NK=asked)
        assert s.asked_logp is not None
        return s.logp, s.entropy, s.square, s.mean_logp, s.asked_logp

    assert torch.autograd.gradcheck(run, (hidden, weight))


def test_asked_ids_repeated_and_equal_to_the_target() -> None:
    hidden, weight, target = case()
    found = statistics(hidden, weight, target, asked_NK=target[:, None].expand(-1, 2))
    assert found.asked_logp is not None
    assert torch.equal(found.asked_logp, found.logp[:, None].expand(-1, 2))


def test_half_precision_product_float32_after() -> None:
    hidden, weight, target = (x.float() if x.is_floating_point() else x for x in case(n=40, d=16))
    hidden, weight = hidden.detach().bfloat16().requires_grad_(), weight.detach().requires_grad_()
    found = statistics(hidden, weight, target, chunk=7)
    assert found.logp.dtype == torch.float32
    found.logp.sum().backward()
    assert hidden.grad is not None and weight.grad is not None
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)
    exact = plain(hidden.detach().float(), weight.detach(), target, 1.0)[0]
    assert (found.logp - exact).abs().max() < 0.2
    wide = statistics(hidden.float(), weight, target, math=torch.float32)
    torch.testing.assert_close(wide.logp, exact)


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[300.0], [-300.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    found = statistics(hidden, weight, torch.tensor([2, 1]))
    assert found.logp.tolist() == pytest.approx([-600.0, -300.0])
    (found.logp.sum() + found.entropy.sum()).backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_no_tensor_of_all_logits_is_made() -> None:
    """The largest tensor that any operation makes, forward or backward, is one chunk of logits or the head itself."""
    n, d, v, chunk = 512, 8, 1000, 16
    hidden = torch.randn(n, d, requires_grad=True)
    weight = torch.randn(v, d, requires_grad=True)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else (out,):
                largest = max(largest, x.numel() if isinstance(x, Tensor) else 0)
            return out

    with Watch():
        statistics(hidden, weight, torch.randint(v, (n,)), chunk=chunk).logp.sum().backward()
    assert largest <= max(chunk * v, v * d, n * d)
    assert largest < n * v / 5
    assert math.isfinite(float(hidden.grad.sum()))  # type: ignore[union-attr]
