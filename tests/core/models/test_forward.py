"""Layouts and shared prompts: the same log-probs and the same gradients as one plain forward per
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraForCausalLM

from quintain.errors import UsageError
from quintain.models import layers
from quintain.models.forward import Forward
from quintain.models.prefix_layout import PrefixGroup, TokenSequence, shared_start

from .architectures import architecture
from .tiny import KINDS, tiny_model

IDS = st.integers(0, 259)


@st.composite
def prefix_groups(draw: st.DrawFn) -> list[list[TokenSequence]]:
    out = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.lists(IDS, min_size=0, max_size=6))
        rows = []
        for _ in range(draw(st.integers(1, 3))):
            ids = start + draw(st.lists(IDS, min_size=2, max_size=6))
            places = draw(st.sets(st.integers(1, len(ids) - 1), min_size=1))
            rows.append(TokenSequence(ids, sorted(places)))
        out.append(rows)
    return out


def outcome(
    forward: Forward, prefix_groups: Sequence[PrefixGroup], temperature: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Log-probs, and the gradient of a fixed mix of them with respect to all weights."""
    forward.module.zero_grad()
    logp = forward.statistics(prefix_groups, temperature=temperature).logp
    (logp * torch.arange(1, len(logp) + 1)).sum().backward()
    return logp.detach(), torch.cat(
        [p.grad.flatten() for p in forward.module.parameters() if p.grad is not None]
    )


def one_by_one(prefix_groups: Sequence[PrefixGroup]) -> list[PrefixGroup]:
    return [[row] for prefix_group in prefix_groups for row in prefix_group]


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "llama"])
def exact(request: pytest.FixtureRequest) -> Forward:
    return Forward(tiny_model(request.param, dtype=torch.float64), layout="shared")


@settings(max_examples=8, deadline=None)
@given(case=prefix_groups())
def test_shared_starts_change_nothing(exact: Forward, case: list[list[TokenSequence]]) -> None:
    logp, grad = outcome(exact, case)
    alone, alone_grad = outcome(exact, one_by_one(case))
    torch.testing.assert_close(logp, alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(grad, alone_grad, rtol=1e-10, atol=1e-9)


@pytest.mark.keeps("auto-llama", "bucketed-llama", "packed-llama")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["auto", "bucketed", "packed"])
def test_layouts_agree_with_a_plain_forward(kind: str, layout: str) -> None:
    module = tiny_model(kind)
    start = [5, 9, 200, 31, 7]
    case = [
        [
            TokenSequence([*start, 3, 4, 5, 6], [5, 6, 7, 8]),
            TokenSequence([*start, 3, 8], [5, 6]),
            TokenSequence([*start, 11, 12, 13], [5, 7]),
        ],
        [TokenSequence([1, 2, 3, 4, 5, 6, 7], [1, 6])],
    ]
    forward = Forward(module, layout=layout)  # type: ignore[arg-type]
    assert forward.layout == (
        layout if layout != "auto" else "bucketed" if kind == "gpt2" else "shared"
    )
    logp, grad = outcome(forward, case)
    want, want_grad = _plain(module, case)
    torch.testing.assert_close(logp, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        grad, want_grad, rtol=1e-4, atol=2e-3 * float(want_grad.abs().max()) + 1e-5
    )


def _plain(module: nn.Module, case: Sequence[PrefixGroup]) -> tuple[Tensor, Tensor]:
    module.zero_grad()
    found = []
    for prefix_group in case:
        for row in prefix_group:
            ids = torch.tensor([list(row.ids)])
            logp = (module(input_ids=ids).logits[0] / 0.7).log_softmax(-1)
            found.extend(logp[place - 1, row.ids[place]] for place in row.positions)
    logp = torch.stack(found)
    (logp * torch.arange(1, len(logp) + 1)).sum().backward()
    return logp.detach(), torch.cat(
        [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    )


def test_on_a_gpu_no_call_has_both_a_mask_and_groups_of_heads(
    exact: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There torch has no fast kernel for both. The result is the same, gradients too; a CPU goes on
    with groups.
    """
    start = [5, 9, 200, 31, 7]
    case = [
        [TokenSequence([*start, i, 4, 5, 6], [5, 6, 7, 8]) for i in range(3)],
        [TokenSequence([1, 2, 3], [1, 2])],
    ]
    calls: list[tuple[bool, bool]] = []

    def spy(*args: Any, attn_mask: Any, enable_gqa: bool, **options: Any) -> Tensor:
        calls.append((attn_mask is not None, enable_gqa))
        return attention(*args, attn_mask=attn_mask, enable_gqa=enable_gqa, **options)

    attention = layers.functional.scaled_dot_product_attention
    monkeypatch.setattr(layers.functional, "scaled_dot_product_attention", spy)
    grouped = exact.decoder is not None and exact.decoder.heads != exact.decoder.key_heads
    want, want_grad = outcome(exact, case)
    assert ((True, True) in calls) is grouped
    calls.clear()
    monkeypatch.setattr(layers, "on_gpu", lambda x: True)
    logp, grad = outcome(exact, case)
    assert {mask for mask, _ in calls} == {True, False}
    assert not any(groups for _, groups in calls)
    torch.testing.assert_close(logp, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(grad, want_grad, rtol=1e-12, atol=1e-12)


def test_checkpointing_changes_nothing() -> None:
    case = [
        [TokenSequence([1, 2, 3, 4, 5], [3, 4]), TokenSequence([1, 2, 3, 9], [3])],
        [TokenSequence([4, 4, 8], [1, 2])],
    ]
    for kind in ("qwen3", "gpt2"):
        module = tiny_model(kind, dtype=torch.float64)
        kept, plain_size = _with_saved_size(Forward(module), case)
        again, size = _with_saved_size(Forward(module, checkpointing=True), case)
        assert size < plain_size
        for a, b in zip(kept, again, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def _with_saved_size(
    forward: Forward, case: Sequence[PrefixGroup]
) -> tuple[tuple[Tensor, Tensor], int]:
    """The outcome, and how many elements the forward pass kept for the backward pass."""
    sizes: list[int] = []

    def keep(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        forward.statistics(case)
    return outcome(forward, case), sum(sizes)


def test_shared_start_leaves_every_row_a_token_of_its_own() -> None:
    assert shared_start([TokenSequence([1, 2, 3, 4], [3]), TokenSequence([1, 2, 3], [2])]) == 1
    assert shared_start([TokenSequence([1, 2, 3, 4], [3]), TokenSequence([1, 2, 9, 4], [2])]) == 2
    assert shared_start([TokenSequence([1, 2], [1])]) == 0
    same = TokenSequence([7, 7, 7, 7], [1, 2, 3])
    assert shared_start([same, same]) == 2


def test_cost_counts_a_shared_start_once() -> None:
    forward = Forward(tiny_model("qwen3"), layout="shared")
    prefix_group = [TokenSequence([1, 2, 3, 4, 5], [4]), TokenSequence([1, 2, 3, 6, 7], [4])]
    assert forward.cost(prefix_group) == 4 + 4 - 3
    assert Forward(tiny_model("gpt2")).cost(prefix_group) == 8


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_seen() -> None:
    peft = pytest.importorskip("peft")
    module = peft.get_peft_model(
        tiny_model("qwen3"), peft.LoraConfig(r=2, target_modules="all-linear")
    )
    with torch.no_grad():
        for name, p in module.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.1)
    case = [[TokenSequence([1, 2, 3, 4, 5], [3, 4]), TokenSequence([1, 2, 3, 9], [3])]]
    logp, _ = outcome(Forward(module, layout="shared"), case)
    want, _ = _plain(module, case)
    torch.testing.assert_close(logp, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [32, 33])
def test_a_longer_neighbour_changes_no_log_prob(length: int) -> None:
    """Nor does it where rotary frequencies depend on the length (32 tokens here): what is longer is
    refused.
    """
    module = architecture("phi3-longrope", dtype=torch.float64)
    forward = Forward(module)
    short, long = (
        TokenSequence([(7 * i) % 60 for i in range(n)], range(1, n)) for n in (20, length)
    )
    alone = forward.statistics([[short]]).logp
    if length > 32:
        with pytest.raises(
            UsageError, match="33 tokens cannot train: past 32 tokens the rotary embedding follows"
        ):
            forward.statistics([[short], [long]])
        return
    beside = forward.statistics([[short], [long]]).logp
    torch.testing.assert_close(beside[: len(alone)], alone, rtol=0, atol=1e-5)


def test_refuses_what_it_cannot_score() -> None:
    """A head with a layer of its own before the output layer, and a layout that does not know the
    model.
    """
    config = ElectraConfig(
        vocab_size=64, hidden_size=32, embedding_size=16, num_hidden_layers=1, is_decoder=True
    )
    with pytest.raises(UsageError, match=r"ElectraForCausalLM cannot train.*docs/models.md"):
        Forward(ElectraForCausalLM(config))
    with pytest.raises(UsageError, match="does not know GPT2"):
        Forward(tiny_model("gpt2"), layout="shared")
