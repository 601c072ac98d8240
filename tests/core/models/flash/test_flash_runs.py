"""Attention in runs, merged by log-sum-exp: the same as one plain attention with a mask, gradients
too. The kernel of a CPU stands for that of a GPU, whose arguments torch checks without a device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from quintain.models import forward, kernels
from quintain.models.flash import FLASH, checks
from quintain.models.flash import runs as flash
from quintain.models.flash.runs import TokenRun, calls_of, flash_attend
from quintain.models.flash.shape import AttentionShape
from quintain.models.forward import Forward
from quintain.models.prefix_layout import TokenSequence

from ....lanes import examples
from ..test_forward import one_by_one, outcome, prefix_groups
from ..test_prefix_tree import tokens, trees
from ..tiny import tiny_model
from . import cpu_flash

CPU = torch.device("cpu")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_flash.use(monkeypatch)


@st.composite
def forests(draw: st.DrawFn) -> list[TokenRun]:
    """Runs in the order of their tokens: each after its parent, descendants as neighbours."""
    runs: list[TokenRun] = []

    def grow(parent: int, depth: int) -> None:
        runs.append(TokenRun(draw(st.integers(1, 9)), parent))
        place = len(runs) - 1
        for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
            grow(place, depth + 1)

    for _ in range(draw(st.integers(1, 3))):
        grow(-1, 0)
    return runs


def seen_by(runs: list[TokenRun]) -> Tensor:
    """Return which tokens each token sees, [F, F], run by run."""
    begins = list(accumulate((run.length for run in runs), initial=0))
    seen = torch.zeros(begins[-1], begins[-1], dtype=torch.bool)
    for i, run in enumerate(runs):
        rows = slice(begins[i], begins[i + 1])
        seen[rows, rows] = torch.ones(run.length, run.length, dtype=torch.bool).tril()
        parent = run.parent
        while parent >= 0:
            seen[rows, begins[parent] : begins[parent + 1]] = True
            parent = runs[parent].parent
    return seen


def with_gradients(
    attention: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor]
) -> list[Tensor]:
    """Return the result, and gradients of a fixed mix of it."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    mixed = attention(*leaves)
    weights = torch.linspace(-1, 2, mixed.numel(), dtype=mixed.dtype).view_as(mixed)
    return [mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), leaves)]


def masked(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    heads = [x.transpose(0, 1)[None] for x in (query, key, value)]
    mixed = functional.scaled_dot_product_attention(*heads, attn_mask=seen, scale=0.4)
    return mixed[0].transpose(0, 1)


@settings(max_examples=8, deadline=None)
@given(runs=forests(), key_heads=st.sampled_from([1, 2, 4]), seed=st.integers(0, 99))
def test_merged_calls_are_one_attention_with_a_mask(
    runs: list[TokenRun], key_heads: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    total = sum(run.length for run in runs)
    inputs = [
        # wide scores: the parts of the sum then have very different weights
        3 * torch.randn(total, heads, 8, dtype=torch.float64, generator=generator)
        for heads in (4, key_heads, key_heads)
    ]
    want = with_gradients(lambda q, k, v: masked(q, k, v, seen_by(runs)), inputs)
    with pytest.MonkeyPatch.context() as patch:
        cpu_flash.use(patch)
        calls = calls_of(runs, CPU)
        found = with_gradients(lambda q, k, v: flash_attend(q, k, v, calls, 0.4), inputs)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def check_learner(case: list[list[TokenSequence]], kind: str) -> None:
    """Log-probs and gradients are those of plain rows, with checkpointing too."""
    exact = Forward(tiny_model(kind, dtype=torch.float64), layout="shared")
    want, want_grad = outcome(exact, one_by_one(case))
    with pytest.MonkeyPatch.context() as patch:
        cpu_flash.everywhere(patch)
        patch.setattr(forward, "_attend", None)  # no mask is made, and no padding
        logp, grad = outcome(exact, case)
        again = Forward(exact.module, layout="shared", checkpointing=True)
        _, checkpointed = outcome(again, case)
    scale = float(want_grad.abs().max())
    torch.testing.assert_close(logp, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, want_grad, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(checkpointed, grad, rtol=0, atol=1e-13 * scale)


@settings(max_examples=3, deadline=None)
@given(groups=prefix_groups())
@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_groups_with_a_prompt_learn_as_plain_rows_do(
    groups: list[list[TokenSequence]], kind: str
) -> None:
    check_learner(groups, kind)


def test_rows_that_part_twice_learn_as_plain_rows_do() -> None:
    start, left, right = tokens(0, 40), tokens(1, 35), tokens(2, 33)
    rows = [start + left + [1, 2], start + left + [3], start + right + [4, 5], [*start, 6, 7, 8]]
    tree = [TokenSequence(row, [3, len(row) - 2, len(row) - 1]) for row in rows]
    alone = [TokenSequence([1, 2, 3, 4], [1, 3])]
    check_learner([alone, tree], "llama")


@pytest.mark.slow
@examples(20)
@given(groups=prefix_groups(), tree=trees())
def test_trees_learn_as_plain_rows_do(
    groups: list[list[TokenSequence]], tree: list[TokenSequence]
) -> None:
    check_learner([*groups, tree], "qwen3")


def test_a_chain_of_histories_is_one_run() -> None:
    """Each row goes on where another ends: one causal run, however many there are."""
    (only,) = calls_of([TokenRun(3, i - 1) for i in range(1000)], CPU)
    assert only.causal
    assert only.longest_query == 3000
    assert only.queries == slice(0, 3000)


def test_a_group_reads_its_prompt_in_one_call_and_without_a_copy() -> None:
    """Replies of one prompt are one run of queries over it; neighbouring prompts stay a slice."""
    prompts, replies = (
        [TokenRun(9, -1), TokenRun(4, -1)],
        [TokenRun(5, 0), TokenRun(2, 0), TokenRun(3, 1), TokenRun(6, 1)],
    )
    own, across = calls_of([*prompts, *replies], CPU)
    assert own.causal is True
    assert across.causal is False
    assert across.queries == slice(13, 29)
    assert across.keys == slice(0, 13)
    assert across.query_ends.tolist() == [0, 7, 16]
    assert across.key_ends.tolist() == [0, 9, 13]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torch_takes_the_arguments_of_the_kernels(dtype: torch.dtype) -> None:
    """On tensors without storage: the operations of this torch have these arguments and shapes."""
    with torch.device("meta"):
        query, key = torch.empty(20, 4, 64, dtype=dtype), torch.empty(9, 2, 64, dtype=dtype)
        queries, keys = [range(12), range(12, 20)], [range(5), range(5, 9)]
    call = flash.FlashCall.of(queries, keys, torch.device("meta"))
    mixed, total = flash.forward_kernel(query, key, key, call, 0.1)
    assert mixed.shape == query.shape
    assert mixed.dtype == dtype
    assert total.shape == (4, 20)
    assert total.dtype == torch.float32
    grads = flash.backward_kernel(query, query, key, key, mixed, total, call, 0.1)
    assert [g.shape for g in grads] == [query.shape, key.shape, key.shape]


def test_a_kernel_that_is_missing_or_wrong_is_not_used(
    on_cpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check = inspect.unwrap(checks.flash_works)
    shape = AttentionShape(CPU, torch.bfloat16, 4, 2, 16)
    assert check(shape)
    assert not check(AttentionShape(CPU, torch.float32, 4, 2, 16))
    assert not caplog.records

    def off(*args: Any) -> tuple[Tensor, ...]:
        return tuple(x * 1.05 for x in cpu_flash.backward_kernel(*args))

    monkeypatch.setattr(flash, "backward_kernel", off)
    assert not check(shape)
    assert "its results are off by 0.05" in caplog.text
    monkeypatch.setattr(flash, "forward_kernel", lambda *args: torch.zeros(2) @ torch.zeros(3))
    assert not check(shape)
    assert "is not used: RuntimeError" in caplog.text


def test_kernels_are_found_and_named(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    find = inspect.unwrap(kernels.kernels_of)
    assert find(CPU) is None
    monkeypatch.setattr(kernels, "on_gpu", lambda device: True)
    assert find(CPU) is FLASH
    checks.flash_works.cache_clear()
    checks.flash_reads_caches.cache_clear()
    heads = (4, 2, 16)
    half = FLASH.described(CPU, torch.bfloat16, heads)
    assert half == "prompts: flash in runs, decoding: flash"
    masks = "memory-efficient with masks"
    single = FLASH.described(CPU, torch.float32, heads)
    assert single == f"prompts: {masks}, decoding: {masks}"
    checks.flash_works.cache_clear()
    checks.flash_reads_caches.cache_clear()
