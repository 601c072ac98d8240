"""Rows as branches of a tree: what several begin with passes through the layers once, wherever they
part, and log-probs and gradients are those of each row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintain.models import layers
from quintain.models.forward import Forward, NodeCalls
from quintain.models.prefix_layout import PrefixLayout, TokenSequence, tree_of
from quintain.models.prefix_tree import SAVED, SHORTEST, PrefixTree

from ...lanes import examples
from .tiny import tiny_model

LONG = SHORTEST + 3


@pytest.fixture(scope="module")
def forward() -> Forward:
    return Forward(tiny_model("qwen3", dtype=torch.float64), layout="shared")


def tokens(seed: int, length: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(260) for _ in range(length)]


def grow(random: Random, start: list[int], depth: int) -> list[list[int]]:
    """Return rows that part at random places below *start*; some end where others go on."""
    start = start + [random.randrange(260) for _ in range(random.choice([1, 3, 20, LONG, 150]))]
    rows = [start] if len(start) > 1 and (depth == 0 or random.random() < 0.2) else []
    for _ in range(random.randrange(1, 4) if depth else 0):
        rows += grow(random, start, depth - 1)
    return rows


@st.composite
def trees(draw: st.DrawFn) -> list[TokenSequence]:
    random = Random(draw(st.integers(0, 10**6)))
    rows = [row for _ in range(random.choice([1, 1, 2])) for row in grow(random, [], 3)][:8]
    random.shuffle(rows)
    return [
        TokenSequence(row, sorted(random.sample(range(1, len(row)), random.randrange(1, len(row)))))
        for row in rows
    ]


def outcome(forward: Forward, groups: Sequence[Sequence[TokenSequence]]) -> tuple[Tensor, Tensor]:
    """Return the log-probs and the gradient of a fixed mix of them for all weights."""
    forward.module.zero_grad()
    logp = forward.statistics(groups, temperature=0.7).logp
    (logp * torch.linspace(0.5, 2, len(logp))).sum().backward()
    gradients = [p.grad.flatten() for p in forward.module.parameters() if p.grad is not None]
    return logp.detach(), torch.cat(gradients)


@given(rows=trees())
def test_every_row_is_a_path_and_every_node_is_worth_its_own(rows: list[TokenSequence]) -> None:
    inputs = [row.ids[:-1] for row in rows]
    tree = PrefixTree.of(inputs)
    for row, path in zip(inputs, tree.paths, strict=True):
        assert [token for node in path for token in tree.nodes[node].ids] == list(row)
    ancestors = {path[: k + 1] for path in tree.paths for k in range(len(path))}
    assert len(ancestors) == len(tree.nodes)  # one path leads to each node
    users = {node: sum(node in path for path in tree.paths) for node in range(len(tree.nodes))}
    for path in ancestors:
        node = tree.nodes[path[-1]]
        assert node.before == path[:-1]
        assert node.begin == sum(len(tree.nodes[k].ids) for k in node.before)
        if users[path[-1]] not in (1, len(rows)):  # shared by some
            saved = (users[path[-1]] - 1) * len(node.ids)
            assert len(node.ids) >= SHORTEST or saved >= SAVED
    assert tree.tokens <= sum(map(len, inputs))


@given(rows=trees())
def test_no_two_rows_share_more_than_a_short_beginning_twice(rows: list[TokenSequence]) -> None:
    """Two rows part at most `SHORTEST` tokens after their paths do."""
    inputs = [row.ids[:-1] for row in rows]
    tree = PrefixTree.of(inputs)
    for one, one_path in zip(inputs, tree.paths, strict=True):
        for other, other_path in zip(inputs, tree.paths, strict=True):
            same = [a == b for a, b in zip(one, other, strict=False)]
            shared = [a == b for a, b in zip(one_path, other_path, strict=False)]
            parted = shared.index(False) if False in shared else len(shared)
            once = sum(len(tree.nodes[k].ids) for k in one_path[:parted])
            agree = same.index(False) if False in same else len(same)
            assert once <= agree < once + SHORTEST or once == agree


@pytest.mark.parametrize(
    ("rows", "prompt", "reply", "alike", "common"), [(64, 200, 500, 40, 2), (8, 200, 300, 6, 8)]
)
def test_replies_that_begin_with_the_same_words_are_no_tree(
    rows: int, prompt: int, reply: int, alike: int, common: int
) -> None:
    """It saves some dozen tokens of thousands, and its calls of attention cost more."""
    start, words = tokens(0, prompt), tokens(1, common)
    group = [
        TokenSequence([*start, *(words if k < alike else []), *tokens(2 + k, reply)], [prompt + 9])
        for k in range(rows)
    ]
    assert tree_of(group) is None


def test_nodes_side_by_side_have_masks_that_do_not_grow_with_the_square() -> None:
    start = tokens(0, 4000)
    rows = [TokenSequence([*start, *tokens(1 + k, 500)], [4100]) for k in range(8)]
    rows.append(TokenSequence(tokens(99, 4000), [10]))  # else one common prefix serves all
    layout = PrefixLayout.of([rows], torch.device("cpu"))

    calls = NodeCalls.of(layout.tree_nodes, torch.device("cpu"))

    assert len(calls.together) == 4
    assert {tuple(mask.shape) for _, mask in calls.together} == {(998, 4998)}
    (members, mask), *_ = calls.together
    assert len(members) == 2
    own = mask[:, 4000:]
    assert bool(mask[:, :4000].all())
    assert torch.equal(own[:499, :499], torch.ones(499, 499, dtype=torch.bool).tril())
    assert not own[499:, :499].any()
    assert not own[:499, 499:].any()


def same_as_alone(
    forward: Forward, first: Sequence[TokenSequence], second: Sequence[TokenSequence]
) -> None:
    """Two trees and rows without one give log-probs and gradients that each row has alone."""
    plain = [TokenSequence([1, 2, 3, 4, 5], [3, 4]), TokenSequence([1, 2, 3, 9], [3])]
    groups = [first, plain, second]
    logp, grad = outcome(forward, groups)
    alone, alone_grad = outcome(forward, [[row] for group in groups for row in group])
    torch.testing.assert_close(logp, alone, rtol=0, atol=1e-10)
    scale = float(alone_grad.abs().max())
    torch.testing.assert_close(grad, alone_grad, rtol=0, atol=1e-10 * scale)


@pytest.mark.more
@settings(max_examples=8, deadline=None)
@given(first=trees(), second=trees())
def test_a_tree_changes_no_log_prob_and_no_gradient(
    forward: Forward, first: list[TokenSequence], second: list[TokenSequence]
) -> None:
    same_as_alone(forward, first, second)


@pytest.mark.slow
@examples(30)
@given(first=trees(), second=trees())
def test_more_trees_change_no_log_prob_and_no_gradient(
    forward: Forward, first: list[TokenSequence], second: list[TokenSequence]
) -> None:
    same_as_alone(forward, first, second)


@pytest.mark.more
def test_four_branches_that_share_most_cost_little_more_than_the_tree(forward: Forward) -> None:
    """Rewritten histories of one rollout: four branches of 400 tokens that share 80 per cent."""
    history = tokens(0, 320)
    rows = [TokenSequence(history + tokens(k, 80), [380 + k]) for k in range(1, 5)]
    other = TokenSequence(tokens(9, 400), [300])
    tree = 320 + 4 * 80 + 400 - 2  # without what only predicts nothing
    assert forward.cost([*rows, other]) <= 1.1 * tree
    layout = PrefixLayout.of([[*rows, other]], torch.device("cpu"))
    assert len(layout.ids) == forward.cost([*rows, other])
    logp, grad = outcome(forward, [[*rows, other]])
    alone, alone_grad = outcome(forward, [[row] for row in (*rows, other)])
    torch.testing.assert_close(logp, alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(grad, alone_grad, rtol=1e-10, atol=1e-10)


@pytest.mark.more
def test_a_chain_of_a_thousand_histories_is_no_deeper_than_memory_allows(forward: Forward) -> None:
    """Each turn keeps the whole history and is a conversation of its own: tokens grow by turns, not
    by their square.
    """
    history = tokens(0, LONG * 1000)
    rows = [history[: LONG * k] for k in range(1, 1001)]
    tree = PrefixTree.of([row[:-1] for row in rows])
    assert tree.tokens == len(rows[-1]) - 1
    assert len(tree.nodes) == 1000


def test_plain_groups_keep_their_layout(forward: Forward) -> None:
    """Short replies to one prompt need no tree, even if most of them are equal."""
    prompt = tokens(0, 40)
    rows = [TokenSequence([*prompt, 7, 8, k, 1, 2], [41, 44]) for k in (1, 1, 1, 1, 2, 2, 2, 2)]
    layout = PrefixLayout.of([rows], torch.device("cpu"))
    assert layout.tree_nodes == ()
    assert layout.starts == 42


def test_masks_are_as_long_as_the_longest_path_and_no_taller_than_a_chunk(
    forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that memory grows with the length of a row, not with its square."""
    history = tokens(0, 300)
    rows = [TokenSequence(history + tokens(k, 700), [999]) for k in (1, 2)]
    rows.append(TokenSequence(tokens(5, 50), [40]))
    sizes: list[tuple[int, ...]] = []

    def spy(*args: Any, attn_mask: Any, **options: Any) -> Tensor:
        if attn_mask is not None:
            sizes.append(tuple(attn_mask.shape))
        return attention(*args, attn_mask=attn_mask, **options)

    attention = layers.functional.scaled_dot_product_attention
    monkeypatch.setattr(layers.functional, "scaled_dot_product_attention", spy)
    outcome(forward, [rows])
    assert sizes
    assert max(height for height, _ in sizes) <= 128
    assert max(width for _, width in sizes) <= 999


def test_half_precision_and_checkpointing_agree_with_rows_alone() -> None:
    history = tokens(0, 90)
    rows = [TokenSequence(history[: 45 * k] + tokens(k, 40), [45 * k + 20]) for k in (0, 1, 2)]
    module = tiny_model("qwen2", dtype=torch.float64)
    plain = outcome(Forward(module, layout="shared"), [[row] for row in rows])
    again = outcome(Forward(module, layout="shared", checkpointing=True), [rows])
    for mine, theirs in zip(again, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    single = Forward(tiny_model("qwen2"), layout="shared")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = single.statistics([rows], temperature=0.7).logp.detach()
    torch.testing.assert_close(mixed.double(), plain[0], rtol=0, atol=0.1)
