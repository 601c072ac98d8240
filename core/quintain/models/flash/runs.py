"""Attention over tokens laid flat, without masks, padding or copies of shared keys, by the flash
kernel of a GPU.

The kernel knows runs of neighbouring tokens and causality, but no other mask. So a token attends to
each part of what it sees in a call of its own: causally to its own run, wholly to each run before
it in its tree. Every call returns the log-sum-exp of its scores, which weighs its result in the sum
(the online softmax of Milakov and Gimelshein 2018, between kernels instead of inside one).
Backward, each call gets the sum and its log-sum-exp as if they were its own, which gives its part of the
gradient exactly.

The embedded engine calls the kernel for single tokens.

Shapes: F flat tokens, Q of them as queries and S as keys of one call, R runs, H query heads, K key
heads, E head size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..prefix_layout import PrefixLayout
from ..transfers import to_device


class TokenRun(NamedTuple):
    """Neighbouring flat tokens that see all of the same earlier runs.

    Attributes:
        length: number of tokens, from 1.
        parent: index of the run that comes before it in its rows, -1 for none. It is smaller, and
            all descendants of a run are neighbours.
    """

    length: int
    parent: int


def runs_of(layout: PrefixLayout) -> list[TokenRun]:
    """Return the flat tokens of *layout* as runs: starts of groups, their rests, nodes of trees."""
    runs = [TokenRun(start, -1) for start, _ in layout.lengths if start]
    starts = 0
    for start, rests in layout.lengths:
        runs += [TokenRun(length, starts if start else -1) for length in rests]
        starts += start > 0
    first = len(runs)
    for node in layout.tree_nodes:
        runs.append(TokenRun(len(node.ids), first + node.before[-1] if node.before else -1))
    return runs


@dataclass(frozen=True, kw_only=True)
class FlashCall:
    """One call of the kernel: the i-th run of queries reads the i-th run of keys.

    Attributes:
        queries, keys: which of the flat tokens take part.
        query_ends, key_ends: where runs begin, and the last one ends, int32 [R + 1].
        longest_query, longest_key: tokens of the longest run.
        causal: a query sees its own run, up to itself.
    """

    queries: slice | Tensor
    keys: slice | Tensor
    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_key: int
    causal: bool

    @classmethod
    def of(
        cls,
        queries: Sequence[range],
        keys: Sequence[range],
        device: torch.device,
        *,
        causal: bool = False,
    ) -> Self:
        """Return the call whose runs are these ranges of flat tokens."""
        return cls(
            queries=_places(queries, device),
            keys=_places(keys, device),
            query_ends=run_ends([len(run) for run in queries], device),
            key_ends=run_ends([len(run) for run in keys], device),
            longest_query=max(map(len, queries)),
            longest_key=max(map(len, keys)),
            causal=causal,
        )


def _places(runs: Sequence[range], device: torch.device) -> slice | Tensor:
    """Return *runs* as one slice where each begins at the end of the one before."""
    if all(a.stop == b.start for a, b in pairwise(runs)):
        return slice(runs[0].start, runs[-1].stop)
    return to_device([i for run in runs for i in run], device)


def run_ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return where runs of *lengths* begin, and the last one ends, int32 [R + 1]."""
    return to_device(list(accumulate(lengths, initial=0)), device, torch.int32)


def calls_of(runs: Sequence[TokenRun], device: torch.device) -> tuple[FlashCall, ...]:
    """Return the calls for *runs* in the order of their flat tokens: one for all runs over
    themselves, then one for each depth, of descendants over the runs of this depth.
    """
    runs = _joined(runs)
    begins = accumulate((run.length for run in runs), initial=0)
    own_tokens = [
        range(begin, begin + run.length) for begin, run in zip(begins, runs, strict=False)
    ]
    depths: list[int] = []
    for run in runs:
        depths.append(0 if run.parent < 0 else depths[run.parent] + 1)
    below: dict[int, range] = {}  # tokens of all descendants
    for i in reversed(range(len(runs))):
        if (parent := runs[i].parent) >= 0:
            last = below.get(parent) or below.get(i) or own_tokens[i]
            below[parent] = range(own_tokens[i].start, last.stop)
    calls = [FlashCall.of(own_tokens, own_tokens, device, causal=True)]
    for depth in range(max(depths)):
        parents = [i for i in sorted(below) if depths[i] == depth]
        calls.append(
            FlashCall.of([below[i] for i in parents], [own_tokens[i] for i in parents], device)
        )
    return tuple(calls)


def _joined(runs: Sequence[TokenRun]) -> list[TokenRun]:
    """Return *runs* without those that follow a parent with no other child: both are one run."""
    children = Counter(run.parent for run in runs)
    joined: list[TokenRun] = []
    places: list[int] = []
    for i, run in enumerate(runs):
        if run.parent == i - 1 >= 0 and children[run.parent] == 1:
            joined[-1] = TokenRun(joined[-1].length + run.length, joined[-1].parent)
        else:
            joined.append(TokenRun(run.length, places[run.parent] if run.parent >= 0 else -1))
        places.append(len(joined) - 1)
    return joined


def flash_attend(
    query: Tensor, key: Tensor, value: Tensor, calls: Sequence[FlashCall], scaling: float
) -> Tensor:
    """Compute the attention of queries [F, H, E] over what *calls*, from `calls_of`, let them see
    of keys and values [F, K, E] -> [F, H, E].
    """
    merged: Any = _Merged
    return cast(Tensor, merged.apply(query, key, value, calls, scaling))


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        calls: Sequence[FlashCall],
        scaling: float,
    ) -> Tensor:
        over_themselves, *others = calls
        mixed, total = forward_kernel(query, key, value, over_themselves, scaling)
        if others:
            mixed = mixed.to(total.dtype, copy=True)
        for call in others:
            part = forward_kernel(
                query[call.queries], key[call.keys], value[call.keys], call, scaling
            )
            mixed[call.queries], total[:, call.queries] = merge(
                (mixed[call.queries], total[:, call.queries]), part
            )
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, total)
        ctx.calls, ctx.scaling = calls, scaling
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, total = ctx.saved_tensors
        over_themselves, *others = ctx.calls
        grad = grad.contiguous()
        saved = (query, key, value, mixed, total)
        by_query, by_key, by_value = backward_kernel(grad, *saved, over_themselves, ctx.scaling)
        for call in others:
            q, k = call.queries, call.keys
            part = (query[q], key[k], value[k], mixed[q], total[:, q].contiguous())
            more = backward_kernel(grad[q], *part, call, ctx.scaling)
            by_query[q] += more[0]
            by_key[k] += more[1]
            by_value[k] += more[2]
        return by_query, by_key, by_value, None, None


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return mixed values [Q, H, E] and log-sum-exp [H, Q] over the keys of both, from those over
    different keys.
    """
    total = torch.logaddexp(first[1], second[1])
    one, other = ((sums - total).exp().t().unsqueeze(-1) for sums in (first[1], second[1]))
    return first[0] * one + second[0] * other, total


def attend_cache(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    ends: Tensor,
    begins: Tensor,
    used: Tensor,
    reach: int,
    scaling: float,
) -> Tensor:
    """Compute the attention of one token per row, [n, H, E], over a cache [rows, K, S, E] ->
    [n, H, E]. Without gradients.

    The kernel takes keys [tokens, K, E]. The cache has heads before tokens, so it is shown as if a
    row began every K * S tokens; the kernel reads no more than *used* ones.

    Args:
        ends: 0 to n, int32 [n + 1].
        begins: index of the row of each query times K * S, and any last number, int32 [n + 1].
        used: tokens of each row, int32 [n].
        reach: no row has more.
    """
    _, heads, capacity, size = keys.shape
    shape = (keys.shape[0] * heads * capacity - (heads - 1) * capacity, heads, size)
    flat = (x.as_strided(shape, (size, capacity * size, 1)) for x in (keys, values))
    return cast(
        Tensor,
        torch.ops.aten._flash_attention_forward(
            query, *flat, ends, begins, 1, reach, 0.0, False, False, scale=scaling,
            seqused_k=used,
        )[0],
    )  # fmt: skip


def forward_kernel(
    query: Tensor, key: Tensor, value: Tensor, call: FlashCall, scaling: float
) -> tuple[Tensor, Tensor]:
    """Compute mixed values [Q, H, E] and log-sum-exp [H, Q] of queries [Q, H, E] over keys and
    values [S, K, E].
    """
    lengths = (call.query_ends, call.key_ends, call.longest_query, call.longest_key)
    mixed, total, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, *lengths, 0.0, call.causal, False, scale=scaling
    )
    return mixed, total


def backward_kernel(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixed: Tensor,
    total: Tensor,
    call: FlashCall,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of queries, keys and values, where softmax ran over more keys than
    these: *mixed* and *total* are of all.
    """
    lengths = (call.query_ends, call.key_ends, call.longest_query, call.longest_key)
    unused = query.new_empty(2, dtype=torch.uint64)  # the state of dropout
    by_query, by_key, by_value = torch.ops.aten._flash_attention_backward(
        grad, query, key, value, mixed, total, *lengths, 0.0, call.causal, unused, unused,
        scale=scaling,
    )  # fmt: skip
    return by_query, by_key, by_value
