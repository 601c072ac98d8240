"""The scorer: equal to full logits in values and gradients, whatever the chunk; never holds the
logits of a batch.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quintain.models.head import LogitMap, chunk_of, statistics

from ...lanes import examples


def case(n: int = 7, d: int = 5, v: int = 11, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(v, d, generator=draw, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(v, (n,), generator=draw)


def plain(hidden: Tensor, weight: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, ...]:
    logp = ((hidden @ weight.t()) / temperature).log_softmax(-1)
    prob = logp.exp()
    return (
        logp.gather(1, target[:, None])[:, 0],
        -(prob * logp).sum(1),
        prob.square().sum(1),
        logp.mean(1),
    )


@examples(25)
@given(
    chunk=st.integers(1, 9), temperature=st.sampled_from([0.7, 1.0, 1.7]), seed=st.integers(0, 99)
)
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
        assert s.rest_logp is not None
        return s.logp, s.entropy, s.square, s.mean_logp, s.asked_logp, s.rest_logp

    assert torch.autograd.gradcheck(run, (hidden, weight))


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_the_rest_of_a_sharp_distribution_is_a_sum_of_its_own(temperature: float) -> None:
    """In float32, where it is far below the rounding of 1, and below the smallest float32: value and
    gradient to rounding of the logits. Of all ids there is none.
    """
    hidden, weight, target = case(n=9, d=8, v=60)
    asked = (hidden @ weight.t()).topk(3, dim=1).indices
    logp = ((hidden @ weight.t()) / temperature).log_softmax(1)
    rest = logp.scatter(1, asked, -math.inf).logsumexp(1)
    wanted = torch.autograd.grad(rest.sum(), (hidden, weight))
    assert float(rest.detach().min()) < (-60 if temperature < 1 else -2)
    narrow = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    for chunk in (4, 100):
        found = statistics(*narrow, target, temperature=temperature, chunk=chunk, asked_NK=asked)
        assert found.rest_logp is not None
        torch.testing.assert_close(found.rest_logp.double(), rest, rtol=1e-5, atol=1e-4)
        grads = torch.autograd.grad(found.rest_logp.sum(), narrow)
        for actual, expected in zip(grads, wanted, strict=True):
            assert float((actual.double() - expected).norm() / expected.norm()) < 1e-4
    every = torch.arange(60).expand(9, -1)
    assert statistics(hidden, weight, target, asked_NK=every).rest_logp is None


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("logit_map", [LogitMap(0.3), LogitMap(cap=2.0), LogitMap(3.0, 1.5)])
def test_scale_soft_cap_and_bias_equal_autograd(logit_map: LogitMap, temperature: float) -> None:
    """In values and in the gradients of hidden states, weight and bias, pruned or not, in any
    chunks.
    """
    hidden, weight, target = case(n=9)
    bias = torch.randn(
        11, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True
    )
    cap = min(logit_map.cap, 1e9)
    logits = cap * torch.tanh(logit_map.scale * (hidden @ weight.t() + bias) / cap)
    want = plain(logits, torch.eye(11, dtype=torch.float64), target, temperature)
    mix = torch.randn(4, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = torch.autograd.grad((torch.stack(want) * mix).sum(), (hidden, weight, bias))
    for chunk, prune in ((2, 0.0), (100, 1e-12)):
        options: dict[str, Any] = {"temperature": temperature, "chunk": chunk, "prune": prune}
        found = statistics(hidden, weight, target, bias_V=bias, logit_map=logit_map, **options)
        got = (found.logp, found.entropy, found.square, found.mean_logp)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
        grads = torch.autograd.grad((torch.stack(got) * mix).sum(), (hidden, weight, bias))
        for a, b in zip(grads, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.keeps("1-9", "2-100")
@pytest.mark.parametrize(
    ("threads", "chunk"),
    [(1, 9), (1, 100), (2, 100), pytest.param(2, 9, marks=pytest.mark.slow)],
)
def test_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch, threads: int, chunk: int) -> None:
    """Values and gradients in blocks of two rows are those of one block. With a chunk for all, the
    backward pass has the logits of the forward pass.
    """
    hidden, weight, target = (
        x.float() if x.is_floating_point() else x for x in case(40, 8, 40_000)
    )
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    results = []
    try:
        for elements in (1 << 30, 1):
            monkeypatch.setattr("quintain.models.head.BLOCK_ELEMENTS", elements)
            found = statistics(hidden, weight, target, chunk=chunk, logit_map=LogitMap(cap=3.0))
            columns = (found.logp, found.entropy, found.square, found.mean_logp)
            grads = torch.autograd.grad(torch.stack(columns).sum(), (hidden, weight))
            results.append([x.detach() for x in (*columns, *grads)])
    finally:
        torch.set_num_threads(before)
    for whole, blocked in zip(*results, strict=True):
        assert torch.equal(blocked, whole)


def test_a_second_backward_pass_gives_the_same_gradient() -> None:
    """The first one turns the logits that were kept into their gradient."""
    hidden, weight, target = case()
    loss = statistics(hidden, weight, target).logp.sum()
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


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
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32
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
    """The largest tensor that any operation makes, forward or backward, is one chunk of logits or
    the head itself.
    """
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


# pruning, likeliest tokens


def masked(
    hidden: Tensor, weight: Tensor, target: Tensor, prune: float, temperature: float = 0.8
) -> tuple[Tensor, Tensor]:
    """Log-probs over what is left, with -inf elsewhere, and what is left, [N, V]; by autograd's own
    softmax.
    """
    logits = (hidden @ weight.t()) / temperature
    prob = logits.detach().softmax(-1)
    kept = prob >= prune * prob.amax(-1, keepdim=True)
    kept[torch.arange(len(target)), target] = True
    return logits.masked_fill(~kept, -math.inf).log_softmax(-1), kept


def masked_statistics(logp: Tensor, kept: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    finite = logp.masked_fill(~kept, 0.0)
    prob = logp.exp()
    chosen = logp.gather(1, target[:, None])[:, 0]
    return chosen, -(prob * finite).sum(1), prob.square().sum(1), finite.sum(1) / kept.sum(1)


def bits(safe: Tensor, vocab: int) -> Tensor:
    """[N, V] from bytes, the lowest bit first."""
    return torch.stack([(safe[:, v // 8] >> (v % 8)) & 1 for v in range(vocab)], 1).bool()


@pytest.mark.keeps("1e-09-5", "0.05-5", "0.3-5", "0.999-5")
@pytest.mark.parametrize("vocab", [5, 8, 11, 16, 17])
@pytest.mark.parametrize("prune", [1e-9, 0.05, 0.3, 0.999])
def test_pruned_statistics_equal_a_masked_softmax_with_gradients(vocab: int, prune: float) -> None:
    hidden, weight, target = case(n=9, v=vocab, seed=vocab)
    logp, kept = masked(hidden, weight, target, prune)
    want = masked_statistics(logp, kept, target)
    mix = torch.randn(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad((torch.stack(want) * mix).sum(), (hidden, weight))
    for chunk in (1, 4, 100):
        found = statistics(hidden, weight, target, temperature=0.8, prune=prune, chunk=chunk)
        assert found.safe is not None
        assert found.safe.shape == (9, -(-vocab // 8))
        assert torch.equal(bits(found.safe, vocab), kept)
        got = (found.logp, found.entropy, found.square, found.mean_logp)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
        grads = torch.autograd.grad((torch.stack(got) * mix).sum(), (hidden, weight))
        for a, b in zip(grads, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("alone", range(4))
def test_each_pruned_statistic_alone_has_its_gradient(alone: int) -> None:
    """The backward pass takes other ways where only some of them are wanted."""
    hidden, weight, target = case(n=5, v=11)
    logp, kept = masked(hidden, weight, target, 0.2)
    want = torch.autograd.grad(masked_statistics(logp, kept, target)[alone].sum(), (hidden, weight))
    found = statistics(hidden, weight, target, temperature=0.8, prune=0.2, chunk=2)
    one = (found.logp, found.entropy, found.square, found.mean_logp)[alone]
    for a, b in zip(torch.autograd.grad(one.sum(), (hidden, weight)), want, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_under_a_frozen_vocabulary() -> None:
    """Chosen under other weights; asked ids that are left out have log-prob -inf and no
    gradient.
    """
    hidden, weight, target = case(n=4, d=3, v=11)
    before, _, _ = case(n=4, d=3, v=11, seed=5)
    safe = statistics(before.detach(), weight.detach(), target, prune=0.3).safe
    assert safe is not None
    kept = bits(safe, 11)
    assert 4 < int(kept.sum()) < 40
    inside = torch.stack([row.nonzero()[:, 0][[0, -1]] for row in kept])

    def run(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        s = statistics(
            hidden, weight, target, temperature=0.8, chunk=3, asked_NK=inside, prune=0.3, safe=safe
        )
        assert s.asked_logp is not None
        assert s.safe is not None
        assert torch.equal(s.safe, safe)
        return s.logp, s.entropy, s.square, s.mean_logp, s.asked_logp

    assert torch.autograd.gradcheck(run, (hidden, weight))
    outside = torch.stack([(~row).nonzero()[:1, 0] for row in kept])
    left_out = statistics(hidden, weight, target, asked_NK=outside, prune=0.3, safe=safe).asked_logp
    assert left_out is not None
    assert (left_out == -math.inf).all()
    grads = torch.autograd.grad(left_out.exp().sum(), (hidden, weight))
    assert not any(g.any() for g in grads)


def test_pruning_nothing_changes_nothing() -> None:
    """A share of 0 keeps no bits; one far below all probabilities keeps all tokens."""
    hidden, weight, target = case()
    plain = statistics(hidden, weight, target)
    all_kept = statistics(hidden, weight, target, prune=1e-300)
    assert plain.safe is None
    assert all_kept.safe is not None
    assert bits(all_kept.safe, 11).all()
    for name in ("logp", "entropy", "square", "mean_logp"):
        assert torch.equal(getattr(plain, name), getattr(all_kept, name))


@pytest.mark.parametrize("prune", [0.0, 0.2])
@pytest.mark.parametrize("top", [1, 3, 11, 50])
def test_likeliest_tokens(top: int, prune: float) -> None:
    """In order, with their log-probs; all where more are asked for than there are; without
    gradient.
    """
    hidden, weight, target = case(n=7, v=11)
    logp, _ = masked(hidden, weight, target, prune)
    want = logp.detach().topk(min(top, 11), dim=1)
    for chunk in (2, 100):
        found = statistics(
            hidden, weight, target, temperature=0.8, top=top, prune=prune, chunk=chunk
        )
        assert found.top_logp is not None
        assert found.top_ids is not None
        torch.testing.assert_close(found.top_logp, want.values)
        real = want.values.isfinite()
        assert torch.equal(found.top_ids[real], want.indices[real])
        assert not found.top_logp.requires_grad
    assert statistics(hidden, weight, target).top_ids is None


def test_sampler_and_scorer_leave_out_the_same_tokens() -> None:
    """The sampler's log-prob of a token, which it may draw, is the scorer's under the same share
    and temperature.
    """
    from quintain.engine.sampler import Sampler
    from quintain.types.sampling import Sampling

    hidden, weight, _ = case(n=60, v=11)
    samplings = [Sampling(temperature=0.8, prune=0.2)] * 60
    uniforms = torch.linspace(0, 1 - 1e-9, 60, dtype=torch.float64)
    ids, logp = Sampler(samplings, hidden.device, len(weight)).pick(
        (hidden @ weight.t()).detach(), uniforms
    )
    found = statistics(hidden, weight, ids, temperature=0.8, prune=0.2)
    torch.testing.assert_close(found.logp, logp)
    _, kept = masked(hidden, weight, ids, 0.2)
    assert 0.1 < kept.double().mean() < 0.9
    plain = statistics(hidden, weight, ids, temperature=0.8)
    assert (found.logp >= plain.logp - 1e-12).all()
    assert (found.logp > plain.logp + 1e-3).any()


def test_chunks_are_larger_on_a_gpu() -> None:
    """By the device of the head, and at least one token however large the vocabulary."""
    sizes = {device: chunk_of(torch.empty(151_936, 1, device=device)) for device in ("cpu", "meta")}
    assert sizes == {"cpu": (1 << 24) // 151_936, "meta": (1 << 27) // 151_936}
    assert chunk_of(torch.empty(1 << 28, 1, device="meta")) == 1
